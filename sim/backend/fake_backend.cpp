#include "sim/backend/fake_backend.hpp"

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <numeric>

#include "reference/core/errors.hpp"
#include "sim/backend/torch_tensors.hpp"

namespace accel::sim {
namespace {

// The result exists already. A wait is an event of the trace, whichever way the program waits: see SimWork::getFuture.
class FakeWork : public c10d::Work {
 public:
  /// `scratch`: what Gloo's work holds besides until its end.
  FakeWork(std::shared_ptr<TraceRecorder> recorder, std::size_t call, c10d::OpType type,
           std::vector<at::Tensor> results, std::vector<at::Tensor> scratch)
      : c10d::Work(0, type),
        recorder_(std::move(recorder)),
        call_(call),
        results_(std::move(results)),
        scratch_(std::move(scratch)) {}

  bool wait(std::chrono::milliseconds /*timeout*/) override {
    recorder_->add_wait(call_);
    scratch_.clear();
    return true;
  }
  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  std::vector<at::Tensor> result() override { return results_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    future->markCompleted(c10::IValue(results_));
    if (torch::autograd::get_current_graph_task_id() != -1) {
      torch::autograd::Engine::get_default_engine().queue_callback(
          [work = c10::intrusive_ptr<FakeWork>::reclaim_copy(this)] { work->wait(kNoTimeout); });
    }
    return future;
  }

 private:
  std::shared_ptr<TraceRecorder> recorder_;
  std::size_t call_;
  std::vector<at::Tensor> results_, scratch_;
};

// Gloo reduces a copy of a reduce-scatter's inputs, and gathers into one buffer, from which it copies. Source:
// torch/csrc/distributed/c10d/ProcessGroupGloo.cpp.
std::vector<at::Tensor> scratch_of(const CollectiveArgs& args) {
  std::vector<at::Tensor> scratch;
  const auto add = [&](const std::vector<at::Tensor>& tensors) {
    for (const auto& tensor : tensors) scratch.push_back(at::empty_like(tensor));
  };
  switch (args.collective) {
    case Collective::kAllGather:
    case Collective::kAllGatherIntoTensor:
    case Collective::kAllGatherCoalesced:
    case Collective::kAllGatherIntoTensorCoalesced:
    case Collective::kGather: add(args.outputs); break;
    case Collective::kReduceScatter:
    case Collective::kReduceScatterTensor: add(args.inputs); break;
    default: break;
  }
  return scratch;
}

// Hides the backend's own copies from the operator clock and from autograd.
struct Unwatched {
  const at::DisableRecordFunctionGuard no_clock;
  const c10::NoGradGuard no_grad;
};

// The rows of an all_to_all that go to rank `rank` or come from it.
at::Tensor rows_for(const at::Tensor& tensor, const std::vector<std::int64_t>& splits, int rank, int size) {
  if (splits.empty()) return tensor.narrow(0, rank * (tensor.size(0) / size), tensor.size(0) / size);
  return tensor.narrow(0, std::accumulate(splits.begin(), splits.begin() + rank, std::int64_t{0}), splits[rank]);
}

// A program may ask for other numbers of rows than its own splits would send: an expert's results return in the numbers
// in which tokens left.
void repeat_rows(const at::Tensor& rows, const at::Tensor& output) {
  if (rows.size(0) == 0) {
    output.zero_();
    return;
  }
  for (std::int64_t begin = 0; begin < output.size(0); begin += rows.size(0)) {
    const auto count = std::min(rows.size(0), output.size(0) - begin);
    output.narrow(0, begin, count).copy_(rows.narrow(0, 0, count));
  }
}

}  // namespace

FakeBackend::FakeBackend(std::shared_ptr<TraceRecorder> recorder, int group, int group_rank, int size)
    : CollectiveBackend(group_rank, size), recorder_(std::move(recorder)), group_(group) {}

FakeBackend::WorkPtr FakeBackend::start(CollectiveArgs args) {
  const auto& described = args.collective == Collective::kRecv ? args.outputs : args.inputs;
  // The peer's distance, by which a message is matched.
  const auto after = args.collective == Collective::kRecv ? (args.root - getRank() + getSize()) % getSize() : 0;
  const auto call = recorder_->add_call(
      group_,
      call_of(args.collective, descriptions_of(described), {}, traits_of(args.collective).has_root ? args.root : -1),
      after);
  std::vector<at::Tensor> scratch;
  {
    const Unwatched unwatched;
    scratch = scratch_of(args);
    is_message(args.collective) ? post(args, call) : compute(args);
  }
  recorder_->skip_compute();
  auto results = results_of(args);
  return c10::make_intrusive<FakeWork>(recorder_, call, op_type_of(args),
                                       results.empty() ? Tensors() : std::move(results.front()), std::move(scratch));
}

void FakeBackend::compute(const CollectiveArgs& args) {
  const auto op = args.collective;
  const bool sums = args.reduce_op == c10d::ReduceOp::SUM;
  auto outputs = args.outputs;
  switch (op) {
    case Collective::kBroadcast:
    case Collective::kBarrier:
    case Collective::kMonitoredBarrier: return;
    case Collective::kReduce:
      if (args.root != getRank()) return;
      [[fallthrough]];
    case Collective::kAllReduce:
    case Collective::kAllReduceCoalesced:
      if (!sums) return;
      for (auto input : args.inputs) input.mul_(getSize());
      return;
    case Collective::kAllGather:
    case Collective::kAllGatherCoalesced:
    case Collective::kGather:
      for (std::size_t index = 0; index < outputs.size(); ++index)
        outputs[index].copy_(args.inputs[index % args.inputs.size()]);
      return;
    case Collective::kAllGatherIntoTensor:  // the input may be one of the output's parts
    case Collective::kAllGatherIntoTensorCoalesced:
      for (std::size_t item = 0; item < outputs.size(); ++item) {
        for (auto& part : TensorAlgebra<at::Tensor>::parts_of(outputs[item], args.inputs[item], getSize()))
          part.copy_(args.inputs[item]);
      }
      return;
    case Collective::kScatter:
      if (args.root == getRank()) outputs[0].copy_(args.inputs[getRank()]);
      return;
    case Collective::kReduceScatter:
      outputs[0].copy_(args.inputs[getRank()]);
      if (sums) outputs[0].mul_(getSize());
      return;
    case Collective::kAllToAll:
      for (auto& output : outputs) {
        const auto& received = args.inputs[getRank()];
        check_argument(output.sizes() == received.sizes(),
                       "all_to_all: every rank sends a tensor of shape {} to rank {}, and an output has shape {}",
                       c10::str(received.sizes()), getRank(), c10::str(output.sizes()));
        output.copy_(received);
      }
      return;
    case Collective::kReduceScatterTensor:
      for (std::size_t item = 0; item < outputs.size(); ++item) {
        outputs[item].copy_(
            TensorAlgebra<at::Tensor>::parts_of(args.inputs[item], outputs[item], getSize())[getRank()]);
        if (sums) outputs[item].mul_(getSize());
      }
      return;
    case Collective::kAllToAllSingle: {
      const auto rows = rows_for(args.inputs[0], args.input_splits, getRank(), getSize());
      for (int rank = 0; rank < getSize(); ++rank)
        repeat_rows(rows, rows_for(outputs[0], args.output_splits, rank, getSize()));
      return;
    }
    case Collective::kSend:
    case Collective::kRecv:
    case Collective::kCount: break;  // see post
  }
}

void FakeBackend::post(const CollectiveArgs& args, std::size_t call) {
  const auto after = (args.root - getRank() + getSize()) % getSize();
  if (args.collective == Collective::kSend) {
    auto& mailbox = mailboxes_[{after, args.tag}];
    mailbox.sends.push_back({call, args.inputs[0].detach().clone()});
    return deliver(mailbox);
  }
  auto& mailbox = mailboxes_[{(getSize() - after) % getSize(), args.tag}];
  mailbox.receives.push_back({call, args.outputs[0].detach()});
  deliver(mailbox);
}

void FakeBackend::deliver(Mailbox& mailbox) {
  while (!mailbox.sends.empty() && !mailbox.receives.empty()) {
    const auto &send = mailbox.sends.front(), &receive = mailbox.receives.front();
    receive.tensor.copy_(send.tensor);
    recorder_->match(receive.call, send.call);
    mailbox.sends.pop_front();
    mailbox.receives.pop_front();
  }
}

c10::intrusive_ptr<c10d::ProcessGroup> make_fake_process_group(const std::shared_ptr<TraceRecorder>& recorder,
                                                               const std::vector<int>& ranks) {
  const auto own = static_cast<int>(std::find(ranks.begin(), ranks.end(), 0) - ranks.begin());
  const auto size = static_cast<int>(ranks.size());
  ensure(own < size, "a fake group of ranks that lack rank 0");
  auto backend = c10::make_intrusive<FakeBackend>(recorder, recorder->add_group(ranks), own, size);
  auto process_group = c10::make_intrusive<c10d::ProcessGroup>(own, size);
  process_group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM, backend);
  process_group->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
  return process_group;
}

}  // namespace accel::sim

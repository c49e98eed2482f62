#include "sim/backend/fake_backend.hpp"

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
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
  FakeWork(std::shared_ptr<TraceRecorder> recorder, std::size_t call, c10d::OpType type,
           std::vector<at::Tensor> results)
      : c10d::Work(0, type), recorder_(std::move(recorder)), call_(call), results_(std::move(results)) {}

  bool wait(std::chrono::milliseconds /*timeout*/) override {
    recorder_->add_wait(call_);
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
          [recorder = recorder_, call = call_] { recorder->add_wait(call); });
    }
    return future;
  }

 private:
  std::shared_ptr<TraceRecorder> recorder_;
  std::size_t call_;
  std::vector<at::Tensor> results_;
};

// Hides the backend's own copies from the operator clock and from autograd.
struct Unwatched {
  const at::DisableRecordFunctionGuard no_clock;
  const c10::NoGradGuard no_grad;
};

// The rows that a rank sends to rank `rank`.
at::Tensor rows_for(const at::Tensor& input, const std::vector<std::int64_t>& splits, int rank, int size) {
  if (splits.empty()) return input.narrow(0, rank * (input.size(0) / size), input.size(0) / size);
  return input.narrow(0, std::accumulate(splits.begin(), splits.begin() + rank, std::int64_t{0}), splits[rank]);
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
  {
    const Unwatched unwatched;
    is_message(args.collective) ? post(args, call) : compute(args);
  }
  recorder_->skip_compute();
  auto results = results_of(args);
  return c10::make_intrusive<FakeWork>(recorder_, call, op_type_of(args),
                                       results.empty() ? Tensors() : std::move(results.front()));
}

void FakeBackend::compute(const CollectiveArgs& args) {
  const auto op = args.collective;
  const bool sums = args.reduce_op == c10d::ReduceOp::SUM;
  auto outputs = args.outputs;
  switch (op) {
    case Collective::kBroadcast:
    case Collective::kBarrier: return;
    case Collective::kAllReduce:
      if (sums) args.inputs[0].mul_(getSize());
      return;
    case Collective::kAllGather:
      for (auto& output : outputs) output.copy_(args.inputs[0]);
      return;
    case Collective::kAllGatherIntoTensor:  // the input may be one of the output's parts
      for (auto& part : TensorAlgebra<at::Tensor>::parts_of(outputs[0], args.inputs[0], getSize()))
        part.copy_(args.inputs[0]);
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
      auto& output = outputs[0];
      check_argument(rows.size(0) * getSize() == output.size(0),
                     "all_to_all: every rank sends {} rows to rank {}, and its output has {} rows; expected {}",
                     rows.size(0), getRank(), output.size(0), rows.size(0) * getSize());
      for (int rank = 0; rank < getSize(); ++rank) output.narrow(0, rank * rows.size(0), rows.size(0)).copy_(rows);
      return;
    }
    default:
      throw ArgumentError(fmt::format("{}: a run of one rank without its peers does not support it", name_of(op)));
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

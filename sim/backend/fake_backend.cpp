#include "sim/backend/fake_backend.hpp"

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <numeric>

#include "reference/core/errors.hpp"
#include "sim/backend/tensor_call.hpp"

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
    : c10d::Backend(group_rank, size), recorder_(std::move(recorder)), group_(group) {}

FakeBackend::WorkPtr FakeBackend::answer(c10d::OpType type, std::size_t call, Tensors results) {
  recorder_->skip_compute();
  return c10::make_intrusive<FakeWork>(recorder_, call, type, std::move(results));
}

FakeBackend::WorkPtr FakeBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  check_one(Collective::kBroadcast, tensors);
  const auto call = call_of(Collective::kBroadcast, tensors, {}, static_cast<int>(options.rootRank));
  return answer(c10d::OpType::BROADCAST, recorder_->add_call(group_, call), tensors);
}

FakeBackend::WorkPtr FakeBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  check_one(Collective::kAllReduce, tensors);
  const auto call = recorder_->add_call(group_, call_of(Collective::kAllReduce, tensors));
  const Unwatched unwatched;
  if (options.reduceOp == c10d::ReduceOp::SUM) tensors[0].mul_(getSize());
  return answer(c10d::OpType::ALLREDUCE, call, tensors);
}

FakeBackend::WorkPtr FakeBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                            const c10d::AllgatherOptions&) {
  check_one(Collective::kAllGather, inputs);
  const auto call = recorder_->add_call(group_, call_of(Collective::kAllGather, inputs));
  const Unwatched unwatched;
  for (auto& output : outputs.at(0)) output.copy_(inputs[0]);
  return answer(c10d::OpType::ALLGATHER, call, outputs[0]);
}

// The input may be one of the output's parts.
FakeBackend::WorkPtr FakeBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                  const c10d::AllgatherOptions&) {
  const auto call = recorder_->add_call(group_, call_of(Collective::kAllGatherIntoTensor, {input}));
  const Unwatched unwatched;
  for (auto& part : parts_of(Collective::kAllGatherIntoTensor, output, input, getSize())) part.copy_(input);
  return answer(c10d::OpType::_ALLGATHER_BASE, call, {output});
}

FakeBackend::WorkPtr FakeBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                       const c10d::ReduceScatterOptions& options) {
  const auto call = recorder_->add_call(group_, call_of(Collective::kReduceScatterTensor, {input}));
  const Unwatched unwatched;
  output.copy_(parts_of(Collective::kReduceScatterTensor, input, output, getSize())[getRank()]);
  if (options.reduceOp == c10d::ReduceOp::SUM) output.mul_(getSize());
  return answer(c10d::OpType::_REDUCE_SCATTER_BASE, call, {output});
}

FakeBackend::WorkPtr FakeBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                std::vector<std::int64_t>& /*output_splits*/,
                                                std::vector<std::int64_t>& input_splits, const c10d::AllToAllOptions&) {
  const auto call = recorder_->add_call(group_, call_of(Collective::kAllToAllSingle, {input}));
  const Unwatched unwatched;
  const auto rows = rows_for(input, input_splits, getRank(), getSize());
  check_argument(rows.size(0) * getSize() == output.size(0),
                 "all_to_all: every rank sends {} rows to rank {}, and its output has {} rows; expected {}",
                 rows.size(0), getRank(), output.size(0), rows.size(0) * getSize());
  for (int rank = 0; rank < getSize(); ++rank) output.narrow(0, rank * rows.size(0), rows.size(0)).copy_(rows);
  return answer(c10d::OpType::ALLTOALL_BASE, call, {output});
}

FakeBackend::WorkPtr FakeBackend::send(Tensors& tensors, int destination, int tag) {
  check_one(Collective::kSend, tensors);
  const auto call = recorder_->add_call(group_, call_of(Collective::kSend, tensors));
  const Unwatched unwatched;
  auto& mailbox = mailboxes_[{(destination - getRank() + getSize()) % getSize(), tag}];
  mailbox.sends.push_back({call, tensors[0].detach().clone()});
  deliver(mailbox);
  return answer(c10d::OpType::SEND, call, {});
}

FakeBackend::WorkPtr FakeBackend::recv(Tensors& tensors, int source, int tag) {
  check_one(Collective::kRecv, tensors);
  const auto after = (source - getRank() + getSize()) % getSize();
  const auto call = recorder_->add_call(group_, call_of(Collective::kRecv, tensors), after);
  const Unwatched unwatched;
  auto& mailbox = mailboxes_[{(getSize() - after) % getSize(), tag}];
  mailbox.receives.push_back({call, tensors[0].detach()});
  deliver(mailbox);
  return answer(c10d::OpType::RECV, call, tensors);
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

FakeBackend::WorkPtr FakeBackend::barrier(const c10d::BarrierOptions&) {
  return answer(c10d::OpType::BARRIER, recorder_->add_call(group_, {.op = Collective::kBarrier}), {});
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

#include "backends/recorded/recorded_backend.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <optional>
#include <torch/csrc/autograd/engine.h>
#include <utility>

#include "backends/watch/group_recorder.hpp"
#include "reference/comm/wait_in_slices.hpp"
#include "reference/core/error_text.hpp"
#include "reference/recorder/call_facts.hpp"

namespace accel::recorder {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using std::chrono::milliseconds;

// How often a rank that waits looks for a verdict. A look costs an exception of c10d.
constexpr milliseconds kLookInterval{100};

// Runs `body`, which communicates. An error of c10d is explained.
template <typename Body>
auto with_cause(const GroupRecorder& recorder, const GroupRecorder::Call& call, Body&& body) {
  try {
    return body();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    recorder.explain(call, text_of(error));
  }
}

/// A work of the recorded backend. Marks the rank as waiting while it waits.
class RecordedWork : public c10d::Work {
 public:
  RecordedWork(WorkPtr work, GroupRecorder recorder, GroupRecorder::Call call, std::shared_ptr<GpuWaits> gpu_waits)
      : c10d::Work(-1, work->retrieveOpType()),
        work_(std::move(work)),
        recorder_(std::move(recorder)),
        call_(call),
        gpu_waits_(std::move(gpu_waits)) {}

  bool isCompleted() override { return work_->isCompleted(); }
  bool isSuccess() const override { return work_->isSuccess(); }
  std::exception_ptr exception() const override { return work_->exception(); }
  int sourceRank() const override { return work_->sourceRank(); }
  std::vector<at::Tensor> result() override { return work_->result(); }
  void synchronize() override {
    work_->synchronize();
    if (gpu_waits_) gpu_waits_->begin(call_);
  }
  void blockCurrentStream() override {
    work_->blockCurrentStream();
    if (gpu_waits_) gpu_waits_->begin(call_);
  }
  void abort() override { work_->abort(); }
  // DDP waits for futures at the end of its backward pass. This wait comes before, so that it is recorded.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    if (torch::autograd::get_current_graph_task_id() != -1) {
      torch::autograd::Engine::get_default_engine().queue_callback(
          [work = c10::intrusive_ptr<RecordedWork>::reclaim_copy(this)] { work->wait(kNoTimeout); });
    }
    return work_->getFuture();
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override { return work_->getFutureResult(); }
  float getDuration() const override { return work_->getDuration(); }
  std::uint64_t getSequencenumber() const override { return work_->getSequencenumber(); }

  bool wait(milliseconds timeout) override {
    const bool may_look = !call_.is_message && gpu_waits_ == nullptr;
    const RankRecorder::Wait mark(recorder_.rank(), call_);
    const bool is_ended =
        with_cause(recorder_, call_, [&] { return may_look ? wait_and_look(timeout) : work_->wait(timeout); });
    if (gpu_waits_)
      gpu_waits_->begin(call_);
    else
      recorder_.rank().end(call_);
    return is_ended;
  }

 private:
  bool wait_and_look(milliseconds timeout) {
    return wait_in_slices(
        *work_, timeout, kLookInterval, [&] { recorder_.look(call_); }, [](const std::exception&) { throw; });
  }

  WorkPtr work_;
  GroupRecorder recorder_;
  GroupRecorder::Call call_;
  std::shared_ptr<GpuWaits> gpu_waits_;
};

TensorFacts facts_of_tensor(const at::Tensor& tensor) {
  const auto dtype = static_cast<std::int8_t>(tensor.scalar_type());
  if (tensor.layout() == at::kSparse) {
    return {.dtype = dtype,
            .bytes = static_cast<std::int64_t>(tensor._indices().nbytes() + tensor._values().nbytes()),
            .sizes = tensor.sizes(),
            .sparse_dim = static_cast<std::int8_t>(tensor.sparse_dim())};
  }
  TensorFacts facts{.dtype = dtype,
                    .bytes = static_cast<std::int64_t>(tensor.numel() * tensor.element_size()),
                    .sizes = tensor.sizes()};
  if (!tensor.is_contiguous()) facts.strides = tensor.strides();
  return facts;
}

class RecordedBackend : public CollectiveBackend {
 public:
  RecordedBackend(c10::intrusive_ptr<c10d::Backend> backend, GroupRecorder recorder,
                  std::shared_ptr<GpuWaits> gpu_waits)
      : CollectiveBackend(backend->getRank(), backend->getSize()),
        backend_(std::move(backend)),
        recorder_(std::move(recorder)),
        gpu_waits_(std::move(gpu_waits)) {}

  const std::string getBackendName() const override { return backend_->getBackendName(); }
  c10::intrusive_ptr<Options> getBackendOptions() override { return backend_->getBackendOptions(); }
  void setTimeout(milliseconds timeout) override { backend_->setTimeout(timeout); }
  void setSequenceNumberForGroup() override { backend_->setSequenceNumberForGroup(); }
  std::uint64_t getSequenceNumberForGroup() override { return backend_->getSequenceNumberForGroup(); }
  void abort() override { backend_->abort(); }
  void shutdown() override { backend_->shutdown(); }
  // What the program calls between these is recorded call by call.
  bool supportsCoalescing() const override { return backend_->supportsCoalescing(); }
  void startCoalescing() override { backend_->startCoalescing(); }
  WorkPtr endCoalescing() override { return backend_->endCoalescing(); }

  WorkPtr start(CollectiveArgs args) override {
    const auto call = begin(args);
    // NCCL connects a group in its first collective: the host waits there for the others.
    std::optional<RankRecorder::Wait> mark;
    if (gpu_waits_) mark.emplace(recorder_.rank(), call);
    auto work = with_cause(recorder_, call, [&] { return start_on(*backend_, args); });
    return c10::make_intrusive<RecordedWork>(std::move(work), recorder_, call, gpu_waits_);
  }

  // Blocks until all ranks have come, so this is the wait.
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override {
    const auto call = recorder_.begin(facts_of({.collective = Collective::kMonitoredBarrier}));
    {
      const RankRecorder::Wait mark(recorder_.rank(), call);
      with_cause(recorder_, call, [&] { backend_->monitoredBarrier(options, wait_all_ranks); });
    }
    recorder_.rank().end(call);
  }

 private:
  [[nodiscard]] GroupRecorder::Call begin(const CollectiveArgs& args) const {
    auto facts = facts_of(args);
    facts.is_on_gpu = gpu_waits_ != nullptr;
    if (is_message(args.collective)) return recorder_.begin_message(facts, args.root, args.tag);
    const auto parts = parts_of(args, getSize());
    return recorder_.begin(facts, parts ? &*parts : nullptr);
  }

  c10::intrusive_ptr<c10d::Backend> backend_;
  GroupRecorder recorder_;
  std::shared_ptr<GpuWaits> gpu_waits_;
};

}  // namespace

// The same as call_of of the simulator.
CallFacts facts_of(const CollectiveArgs& args) {
  const auto reduce_op = static_cast<c10d::ReduceOp::RedOpType>(args.reduce_op);
  auto facts = facts_of(args.collective, static_cast<std::uint8_t>(reduce_op), args.root);
  for (const auto& tensor : is_described_by_outputs(args.collective) ? args.outputs : args.inputs)
    add_tensor(facts, facts_of_tensor(tensor));
  return facts;
}

std::optional<Parts> parts_of(const CollectiveArgs& args, int num_ranks) {
  Parts parts;
  if (args.collective == Collective::kAllToAllSingle) {
    parts.sent = parts_of_rows(args.inputs[0].sizes(), args.input_splits, num_ranks);
    parts.expected = parts_of_rows(args.outputs[0].sizes(), args.output_splits, num_ranks);
    return parts;
  }
  if (args.collective != Collective::kAllToAll) return std::nullopt;
  for (const auto& tensor : args.inputs) parts.sent.push_back(part_of(tensor.sizes()));
  for (const auto& tensor : args.outputs) parts.expected.push_back(part_of(tensor.sizes()));
  return parts;
}

c10::intrusive_ptr<c10d::Backend> recorded(c10::intrusive_ptr<c10d::Backend> backend, GroupRecorder recorder,
                                           std::shared_ptr<GpuWaits> gpu_waits) {
  return c10::make_intrusive<RecordedBackend>(std::move(backend), std::move(recorder), std::move(gpu_waits));
}

}  // namespace accel::recorder

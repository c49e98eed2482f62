#include "backends/recorded/recorded_backend.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <span>
#include <string_view>
#include <thread>
#include <torch/csrc/autograd/engine.h>
#include <utility>

#include "reference/comm/group.hpp"
#include "reference/diagnosis/diagnosis.hpp"
#include "reference/recorder/ending.hpp"
#include "reference/recorder/job_reader.hpp"

namespace accel::recorder {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using std::chrono::milliseconds;

// How often a rank that waits looks for a verdict. A look costs an exception of c10d.
constexpr milliseconds kLookInterval{100};
// How long a rank whose call the transport has failed waits for a watch to say why.
constexpr milliseconds kPatience{3000};

bool has_any(std::string_view text, std::span<const char* const> parts) {
  return std::any_of(parts.begin(), parts.end(),
                     [&](const char* part) { return text.find(part) != std::string_view::npos; });
}

// What Gloo says if another rank has ended, or is late. Other errors are the rank's own.
bool has_lost_a_rank(const std::exception& error) {
  constexpr const char* kTexts[] = {"Connection closed by peer", "Connection reset by peer", "Broken pipe"};
  return has_any(error.what(), kTexts);
}
bool is_of_transport(const std::exception& error) {
  constexpr const char* kTexts[] = {"Timed out", "timed out", "Application timeout caused pair closure"};
  return has_lost_a_rank(error) || has_any(error.what(), kTexts);
}

// Whether a rank of this host has ended because of another one, and no watch has said why.
bool has_given_up(const JobRecord& record) {
  const auto ranks = record.local_ranks();
  return std::any_of(ranks.begin(), ranks.end(),
                     [&](int rank) { return record.rank(rank).end.load() == RankEnd::kConsequence; });
}

// The recorder of a rank, and the index of the group in its record.
struct Place {
  std::shared_ptr<RankRecorder> recorder;
  int group = 0;

  // If a watch has ended the job.
  void throw_ending() const {
    auto ending = ending_of(*recorder->record());
    if (!ending) return;
    if (ending->kind != Diagnosis::Kind::kRankFailure) throw DiagnosedError(std::move(*ending));
    throw CommError(fmt::format("rank {}: released from waiting: {}", recorder->rank(), ending->text));
  }

  // The same, if it does so within the patience.
  void await_ending() const {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    for (bool is_last = false; !is_last; std::this_thread::sleep_for(milliseconds(10))) {
      is_last = std::chrono::steady_clock::now() >= deadline || has_given_up(*recorder->record());
      throw_ending();
    }
  }

  // A watch that sees the ranks of other hosts knows more than this host's record.
  [[noreturn]] void throw_difference() const {
    if (!recorder->record()->has_all_ranks()) await_ending();
    throw DiagnosedError(await_difference(recorder->record()));
  }

  // Runs `body`, which communicates. An error of c10d gets the rank and the call, unless calls that differ are its
  // cause.
  template <typename Body>
  auto with_cause(const RankRecorder::Begun& call, Body&& body) const {
    try {
      return body();
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      if (recorder->has_verdict()) throw_difference();
      if (is_of_transport(error)) {
        recorder->set_failed(call);
        // Before a call is late, a watch has had time to say why.
        if (!recorder->record()->is_watched() && has_lost_a_rank(error)) await_ending();
      }
      const auto place = place_at(recorder->record()->rank(recorder->rank()), call.position);
      throw comm_error(fmt::format("rank {}{}", recorder->rank(), place ? ": " + describe(*place) : ""), error);
    }
  }
};

/// A work of the recorded backend. Marks the rank as waiting while it waits.
class RecordedWork : public c10d::Work {
 public:
  RecordedWork(WorkPtr work, Place place, RankRecorder::Begun call, bool can_look)
      : c10d::Work(-1, work->retrieveOpType()),
        work_(std::move(work)),
        place_(std::move(place)),
        call_(call),
        can_look_(can_look) {}

  bool isCompleted() override { return work_->isCompleted(); }
  bool isSuccess() const override { return work_->isSuccess(); }
  std::exception_ptr exception() const override { return work_->exception(); }
  int sourceRank() const override { return work_->sourceRank(); }
  std::vector<at::Tensor> result() override { return work_->result(); }
  void synchronize() override { work_->synchronize(); }
  void blockCurrentStream() override { work_->blockCurrentStream(); }
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
    const RankRecorder::Wait mark(*place_.recorder, call_);
    const bool is_ended =
        place_.with_cause(call_, [&] { return can_look_ ? wait_and_look(timeout) : work_->wait(timeout); });
    place_.recorder->end(call_);
    return is_ended;
  }

 private:
  // A wait of c10d::Work that passes its time-out throws and changes nothing, so it can be repeated. Works of several
  // collectives ignore the time-out, so an error that comes early is another one; one that comes late comes early when
  // the wait is repeated.
  bool wait_and_look(milliseconds timeout) {
    using Clock = std::chrono::steady_clock;
    const auto begin = Clock::now();
    while (true) {
      const auto look = Clock::now();
      const auto passed = std::chrono::duration_cast<milliseconds>(look - begin);
      const bool is_last = timeout != kNoTimeout && timeout - passed <= kLookInterval;
      try {
        return work_->wait(is_last ? std::max(timeout - passed, milliseconds(1)) : kLookInterval);
      } catch (const std::exception&) {
        if (is_last || Clock::now() - look < kLookInterval) throw;
        if (place_.recorder->is_condemned(place_.group, call_, /*is_message=*/false)) place_.throw_difference();
        place_.throw_ending();
      }
    }
  }

  WorkPtr work_;
  Place place_;
  RankRecorder::Begun call_;
  bool can_look_;
};

class RecordedBackend : public CollectiveBackend {
 public:
  RecordedBackend(c10::intrusive_ptr<c10d::Backend> backend, Place place)
      : CollectiveBackend(backend->getRank(), backend->getSize()),
        backend_(std::move(backend)),
        place_(std::move(place)) {}

  const std::string getBackendName() const override { return backend_->getBackendName(); }
  c10::intrusive_ptr<Options> getBackendOptions() override { return backend_->getBackendOptions(); }
  void setTimeout(milliseconds timeout) override { backend_->setTimeout(timeout); }
  void setSequenceNumberForGroup() override { backend_->setSequenceNumberForGroup(); }
  std::uint64_t getSequenceNumberForGroup() override { return backend_->getSequenceNumberForGroup(); }
  void abort() override { backend_->abort(); }
  void shutdown() override { backend_->shutdown(); }

  WorkPtr start(CollectiveArgs args) override {
    const auto begun = begin(args);
    auto work = place_.with_cause(begun, [&] { return start_on(*backend_, args); });
    return c10::make_intrusive<RecordedWork>(std::move(work), place_, begun, !is_message(args.collective));
  }

  // Blocks until all ranks have come, so this is the wait.
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override {
    const auto begun = begin({.collective = Collective::kMonitoredBarrier});
    {
      const RankRecorder::Wait mark(*place_.recorder, begun);
      place_.with_cause(begun, [&] { backend_->monitoredBarrier(options, wait_all_ranks); });
    }
    place_.recorder->end(begun);
  }

 private:
  // Throws, on every rank of the host, if the ranks' calls differ.
  RankRecorder::Begun begin(const CollectiveArgs& args) {
    auto& recorder = *place_.recorder;
    const auto facts = facts_of(args);
    const bool sends_or_receives = is_message(args.collective);
    const auto begun = sends_or_receives ? recorder.begin_message(place_.group, facts, args.root)
                                         : recorder.begin_collective(place_.group, facts);
    if (!sends_or_receives && !recorder.agrees(place_.group, begun)) {
      recorder.condemn(place_.group, begun);
      place_.throw_difference();
    }
    if (recorder.is_condemned(place_.group, begun, sends_or_receives)) place_.throw_difference();
    place_.throw_ending();
    return begun;
  }

  c10::intrusive_ptr<c10d::Backend> backend_;
  Place place_;
};

// The stride of a dimension of size 1 is arbitrary.
void add_with_strides(CallFacts& facts, const at::Tensor& tensor) {
  std::array<std::int64_t, kNumbers> strides{};
  const auto dims = std::min<std::size_t>(tensor.dim(), strides.size());
  for (std::size_t dim = 0; dim < dims; ++dim) strides[dim] = tensor.size(dim) == 1 ? 0 : tensor.stride(dim);
  add_tensor(facts, tensor.sizes(), std::span(strides).first(dims));
}

}  // namespace

// The same as call_of of the simulator.
CallFacts facts_of(const CollectiveArgs& args) {
  const auto op = args.collective;
  CallFacts facts{.op = op};
  if (op == Collective::kBarrier || op == Collective::kMonitoredBarrier) return facts;
  const auto& traits = traits_of(op);
  if (traits.reduces)
    facts.reduce_op = static_cast<std::uint8_t>(static_cast<c10d::ReduceOp::RedOpType>(args.reduce_op));
  if (traits.has_root) facts.root = args.root;
  const bool is_all_to_all = op == Collective::kAllToAll || op == Collective::kAllToAllSingle;
  // The input list of a scatter is on the root only.
  for (const auto& tensor : op == Collective::kScatter || op == Collective::kRecv ? args.outputs : args.inputs) {
    facts.dtype = static_cast<std::int8_t>(tensor.scalar_type());
    const bool is_sparse = tensor.layout() == at::kSparse;
    facts.bytes += is_sparse ? static_cast<std::int64_t>(tensor._indices().nbytes() + tensor._values().nbytes())
                             : static_cast<std::int64_t>(tensor.numel() * tensor.element_size());
    if (is_all_to_all) continue;
    if (is_sparse) facts.sparse_dim = static_cast<std::int8_t>(tensor.sparse_dim());
    if (traits.is_in_place && !is_sparse && !tensor.is_contiguous())
      add_with_strides(facts, tensor);
    else
      add_tensor(facts, tensor.sizes(), {});
  }
  return facts;
}

c10::intrusive_ptr<c10d::Backend> recorded(c10::intrusive_ptr<c10d::Backend> backend, std::string_view name,
                                           const std::vector<int>& members, std::shared_ptr<RankRecorder> recorder) {
  const auto group = recorder->add_group(name, members);
  if (!group) return backend;
  return c10::make_intrusive<RecordedBackend>(std::move(backend), Place{std::move(recorder), *group});
}

}  // namespace accel::recorder

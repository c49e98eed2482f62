#include "backends/python/watch_library.hpp"

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backends/python/guarded.hpp"
#include "backends/python/rank_library.hpp"
#include "backends/python/words.hpp"
#include "backends/watch/group_recorder.hpp"
#include "backends/watch/watched_rank.hpp"
#include "reference/core/errors.hpp"
#include "reference/diagnosis/diagnosis.hpp"
#include "reference/rank_local/call_site.hpp"
#include "reference/recorder/call_facts.hpp"

namespace accel::python {
namespace {

using recorder::GroupRecorder;
using recorder::RankRecorder;

// As guarded, with another answer if the job has to end.
std::int64_t guarded_call(const auto& function) {
  return guarded(
      [&]() -> std::int64_t {
        try {
          function();
          return 0;
        } catch (const DiagnosedError& error) {
          error_of_this_thread() = error.what();
          return ACCEL_DIAGNOSED;
        }
      },
      ACCEL_FAILED);
}

std::string& answer_of_this_thread() {
  thread_local std::string value;
  return value;
}

class PythonStore : public recorder::JobStore {
 public:
  PythonStore(const AccelStore& functions, bool ends_with_rank_0)
      : functions_(functions), ends_with_rank_0_(ends_with_rank_0) {}

  void set(const std::string& key, std::string_view value) override {
    checked(functions_.set(key.c_str(), value.data(), value.size()));
  }
  std::string get(const std::string& key) override {
    checked(functions_.get(key.c_str()));
    return std::move(answer_of_this_thread());
  }
  bool has(const std::vector<std::string>& keys) override {
    std::string joined;
    for (const auto& key : keys) joined += key + '\0';
    return checked(functions_.has(joined.data(), static_cast<int>(keys.size()))) != 0;
  }
  void erase(const std::string& key) override { checked(functions_.erase(key.c_str())); }
  [[nodiscard]] std::unique_ptr<JobStore> clone() const override {
    return std::make_unique<PythonStore>(functions_, ends_with_rank_0_);
  }
  [[nodiscard]] bool ends_with_rank_0() const override { return ends_with_rank_0_; }

 private:
  static std::int64_t checked(std::int64_t answer) {
    if (answer == ACCEL_FAILED) throw CommError("the store of the job is out of reach");
    return answer;
  }

  AccelStore functions_;
  bool ends_with_rank_0_;
};

// This process, as a rank that is watched. The object is never destroyed: threads may use it after main.
struct WatchedRank {
  std::shared_ptr<RankRecorder> recorder;
  recorder::RecordEnd end;
  std::mutex mutex;                  // guards the next
  std::deque<GroupRecorder> groups;  // whose elements stay where they are
};
WatchedRank& watched_rank() {
  static auto* rank = new WatchedRank;
  return *rank;
}

GroupRecorder& group_at(std::int64_t number) {
  auto& rank = watched_rank();
  const std::lock_guard lock(rank.mutex);
  return rank.groups.at(static_cast<std::size_t>(number));
}

// The four words of a call, as the caller keeps it.
void keep(std::int64_t group, const GroupRecorder::Call& call, std::int64_t* words) {
  words[0] = group;
  words[1] = static_cast<std::int64_t>(call.position);
  words[2] = static_cast<std::int64_t>(call.sequence);
  words[3] = call.is_message ? 1 : 0;
}
GroupRecorder::Call kept_call(const std::int64_t* words) {
  GroupRecorder::Call call;
  call.position = static_cast<std::uint64_t>(words[1]);
  call.sequence = static_cast<std::uint64_t>(words[2]);
  call.is_message = words[3] != 0;
  return call;
}

recorder::TensorFacts facts_of(const RawTensor& tensor) {
  return {.dtype = static_cast<std::int8_t>(tensor.dtype),
          .bytes = tensor.num_elements() * tensor.item_bytes,
          .sizes = tensor.sizes,
          .strides = tensor.is_contiguous() ? std::span<const std::int64_t>() : tensor.strides};
}

struct DescribedCall {
  recorder::CallFacts facts;
  int peer = -1, tag = 0;  // of a message
  std::optional<recorder::Parts> parts = {};
};

// The second word is the number of ranks of the group.
DescribedCall read_call(Words words) {
  const auto op = static_cast<Collective>(words.number());
  const auto num_ranks = static_cast<std::size_t>(words.number());
  const auto reduce_op = static_cast<std::uint8_t>(words.number());
  const auto root = static_cast<int>(words.number());
  const auto tag = static_cast<int>(words.number());
  const auto flags = words.number();
  const auto num_inputs = words.number(), num_outputs = words.number(), num_sizes = words.number();
  const auto num_input_splits = words.number(), num_output_splits = words.number();
  DescribedCall call{.facts = recorder::facts_of(op, reduce_op, root), .peer = is_message(op) ? root : -1, .tag = tag};
  std::vector<RawTensor> inputs, outputs;
  for (std::int64_t i = 0; i < num_inputs; ++i) inputs.push_back(words.tensor());
  for (std::int64_t i = 0; i < num_outputs; ++i) outputs.push_back(words.tensor());
  const auto sizes = words.list(num_sizes);
  const auto input_splits = words.list(num_input_splits), output_splits = words.list(num_output_splits);
  if (op == Collective::kAllToAllSingle) {
    call.parts = recorder::Parts{.sent = recorder::parts_of_rows(inputs.at(0).sizes, input_splits, num_ranks),
                                 .expected = recorder::parts_of_rows(outputs.at(0).sizes, output_splits, num_ranks)};
  } else if (op == Collective::kAllToAll) {
    call.parts.emplace();
    for (const auto& tensor : inputs) call.parts->sent.push_back(recorder::part_of(tensor.sizes));
    for (const auto& tensor : outputs) call.parts->expected.push_back(recorder::part_of(tensor.sizes));
  }
  if ((flags & ACCEL_IS_SPARSE) != 0) {
    const auto &indices = inputs.at(0), &values = inputs.at(1);
    add_tensor(call.facts, {.dtype = static_cast<std::int8_t>(values.dtype),
                            .bytes = facts_of(indices).bytes + facts_of(values).bytes,
                            .sizes = sizes,
                            .sparse_dim = static_cast<std::int8_t>(indices.sizes.at(0))});
    return call;
  }
  for (const auto& tensor : recorder::is_described_by_outputs(op) ? outputs : inputs)
    add_tensor(call.facts, facts_of(tensor));
  return call;
}

}  // namespace
}  // namespace accel::python

using namespace accel::python;  // NOLINT(google-build-using-namespace): the functions below are C's

extern "C" {

ACCEL_EXPORT void accel_watch_answer(const char* value, size_t bytes) { answer_of_this_thread().assign(value, bytes); }

ACCEL_EXPORT const char* accel_watch_host() {
  static const auto* const name = new std::string(accel::recorder::host_name());
  return name->c_str();
}

ACCEL_EXPORT int64_t accel_watch_start(int rank, int world_size, int local_rank, int local_world_size,
                                       int is_served_by_rank_0, const AccelStore* store) {
  return guarded(
      [&]() -> int64_t {
        auto& self = watched_rank();
        accel::check_state(self.recorder == nullptr, "this process is watched already, as rank {}",
                           self.recorder ? self.recorder->rank() : -1);
        PythonStore job_store(*store, is_served_by_rank_0 != 0);
        self.recorder = accel::recorder::make_recorder(
            {.rank = rank, .world_size = world_size, .local_rank = local_rank, .local_world_size = local_world_size},
            job_store);
        if (self.recorder) self.end = accel::recorder::watch_until_end(self.recorder, job_store);
        return self.recorder ? 1 : 0;
      },
      ACCEL_FAILED);
}

ACCEL_EXPORT int64_t accel_watch_group(const char* name, const int64_t* ranks, int num_ranks) {
  return guarded(
      [&]() -> int64_t {
        auto& self = watched_rank();
        auto group = GroupRecorder::create(self.recorder, name, std::vector<int>(ranks, ranks + num_ranks));
        if (!group) return -1;
        const std::lock_guard lock(self.mutex);
        self.groups.push_back(std::move(*group));
        return static_cast<int64_t>(self.groups.size()) - 1;
      },
      ACCEL_FAILED);
}

ACCEL_EXPORT int64_t accel_watch_begin(int64_t group, const int64_t* words, const char* file, uint32_t line,
                                       int64_t* call) {
  return guarded_call([&] {
    const accel::CallSite site({accel::kept(file), line});
    const auto described = read_call(Words(words));
    const auto& recorder = group_at(group);
    keep(group,
         accel::is_message(described.facts.op)
             ? recorder.begin_message(described.facts, described.peer, described.tag)
             : recorder.begin(described.facts, described.parts ? &*described.parts : nullptr),
         call);
  });
}

ACCEL_EXPORT void* accel_watch_wait(const int64_t* call, int num_threads) {
  watched_rank().recorder->set_num_threads(num_threads);
  return new RankRecorder::Wait(*watched_rank().recorder, kept_call(call));
}

ACCEL_EXPORT void accel_watch_end_wait(void* wait, const int64_t* call, int has_ended) {
  delete static_cast<RankRecorder::Wait*>(wait);
  if (has_ended != 0) watched_rank().recorder->end(kept_call(call));
}

ACCEL_EXPORT int64_t accel_watch_look(const int64_t* call) {
  return guarded_call([&] { group_at(call[0]).look(kept_call(call)); });
}

ACCEL_EXPORT int64_t accel_watch_explain(const int64_t* call, const char* message) {
  return guarded_call([&] { group_at(call[0]).explain(kept_call(call), message); });
}

ACCEL_EXPORT int64_t accel_watch_end(int how, const char* message) {
  int64_t is_on_record = 0;
  const auto answer = guarded_call([&] {
    // Ended when this returns, and with it the threads of the watch.
    const auto end = std::exchange(watched_rank().end, nullptr);
    if (!end) return;
    const accel::CommError error(message);
    const accel::DiagnosedError condemned({.text = message});
    const std::exception* const errors[] = {nullptr, &error, &condemned};
    is_on_record = end(errors[how]) ? 1 : 0;
  });
  return answer == 0 ? is_on_record : answer;
}

}  // extern "C"

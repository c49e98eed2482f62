#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reference/core/thread_safety.hpp"
#include "reference/rank_local/call_site.hpp"
#include "reference/recorder/call_facts.hpp"
#include "reference/recorder/job_record.hpp"

namespace accel::recorder {

/// Writes the calls of one rank into the record of its job, and compares them with those of the other ranks.
///
/// begin and end take neither a lock nor memory, except for a text that the thread has not used lately. Thread rule:
/// any thread of the rank.
class RankRecorder {
 public:
  RankRecorder(std::shared_ptr<JobRecord> record, int rank);

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] const std::shared_ptr<JobRecord>& record() const { return record_; }

  /// Announces a group that the rank has joined. `members`: world ranks, by group rank. Returns its index; nothing if
  /// the record has no room for another group, whose calls are then not recorded.
  std::optional<int> add_group(std::string_view name, std::span<const int> members);

  /// A call that has begun.
  struct Begun {
    std::uint64_t position = 0;
    std::uint64_t sequence = 0;
  };
  /// Records a collective, so that the other ranks can compare it. It comes from the current CallSite. `parts`: of an
  /// all-to-all, else null.
  Begun begin_collective(int group, const CallFacts& facts, const Parts* parts = nullptr);
  /// Records one end of a message. `peer`: group rank; -1: any.
  Begun begin_message(int group, const CallFacts& facts, int peer, int tag);
  /// The rank has seen the end of the call.
  void end(const Begun& call);

  /// Whether all ranks of this host that have joined the collective have made the same call.
  [[nodiscard]] bool agrees(int group, const Begun& call);
  /// Whether the call must fail because calls differ: it is the condemned collective or a later one of its group, or a
  /// second has passed. Other calls still run, so that every rank arrives at the collective and is in its diagnosis.
  [[nodiscard]] bool is_condemned(int group, const Begun& call, bool is_message) const {
    return has_verdict() && is_condemned_by_verdict(group, call, is_message);
  }
  [[nodiscard]] bool has_verdict() const { return record_->has_verdict(); }
  /// Makes this collective the verdict, unless there is one. There is one afterwards.
  void condemn(int group, const Begun& call);

  /// How many threads the program has, if it knows: one that has made no call yet may end the wait of another.
  void set_num_threads(int count) { own_.num_program_threads.store(static_cast<std::uint32_t>(count)); }

  /// How the rank's program has ended, with the message of its error.
  void set_end(RankEnd end, std::string_view message);

  /// Whether the others continue if this rank ends now: it is in an elastic training.
  void set_may_be_lost(bool may_be_lost) {
    own_.may_be_lost = may_be_lost;
    if (may_be_lost) record_->is_elastic() = true;
  }

  /// The GPU has come to this call and waits for its end; 0: for none.
  void set_gpu_wait(std::uint64_t position) { own_.gpu_wait.store(position, std::memory_order_release); }

  /// The transport has failed in the call: another rank has ended, or is late. If the program ends before its next
  /// call, it shows as waiting in this one.
  void set_failed(const Begun& call) { own_.failed_call.store(call.position, std::memory_order_release); }
  [[nodiscard]] bool has_failed() const { return own_.failed_call.load(std::memory_order_acquire) != 0; }

  /// Marks that a thread waits in a call.
  class Wait {
   public:
    Wait(RankRecorder& recorder, const Begun& call);
    ~Wait();
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

   private:
    std::atomic<std::uint64_t>* place_ = nullptr;  ///< null: more threads wait than the record has room for
  };

 private:
  [[nodiscard]] bool is_condemned_by_verdict(int group, const Begun& call, bool is_message) const;
  RecordedCall& write(int group, const CallFacts& facts, int peer, std::uint64_t position);
  std::uint32_t write_exchange(const Parts& parts, std::uint64_t position);
  std::uint16_t cached_index(std::uint64_t key, std::string_view text);
  std::uint16_t text_index(std::string_view text);

  std::shared_ptr<JobRecord> record_;
  const int rank_;
  const std::uint64_t id_;  // of this process's recorders
  RankRecord& own_;
  /// By group and group rank: where the peer keeps the group, or -1 if it has not been found yet. Has room for all
  /// groups from the beginning, since other threads may make calls while a group is added.
  std::vector<std::vector<std::atomic<std::int16_t>>> groups_of_peers_;
  Mutex texts_mutex_, groups_mutex_;
};

}  // namespace accel::recorder

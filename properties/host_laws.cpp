// What hosts tell each other of their ranks' calls suffices to find the first calls that differ, and to diagnose them
// as if all ranks were on one host.
#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "reference/diagnosis/diagnose.hpp"
#include "reference/diagnosis/diagnosis_json.hpp"
#include "reference/recorder/call_facts.hpp"
#include "reference/recorder/call_log.hpp"
#include "reference/recorder/ending.hpp"
#include "reference/recorder/host_state.hpp"
#include "reference/recorder/rank_recorder.hpp"
#include "reference/recorder/slowest_rank.hpp"
#include "tests/support/property.hpp"

namespace accel::testing::host_laws {
namespace {

using recorder::CallFacts;
using recorder::HostState;
using recorder::JobRecord;
using recorder::RankRecorder;

constexpr int kRanks = 4;

// The same calls, recorded on one host and on two with two ranks each.
class Job {
 public:
  Job() : whole_(JobRecord::create({.world_size = kRanks, .num_local = kRanks})) {
    for (int first : {0, 2})
      hosts_.push_back(JobRecord::create({.world_size = kRanks, .first_rank = first, .num_local = 2}));
    for (int rank = 0; rank < kRanks; ++rank) {
      for (const auto& record : {whole_, hosts_[rank / 2]}) {
        ranks_[rank].push_back(std::make_unique<RankRecorder>(record, rank));
        ranks_[rank].back()->add_group("world", std::vector<int>{0, 1, 2, 3});
        ranks_[rank].back()->add_group("pair", std::vector<int>{rank % 2, rank % 2 + 2});
      }
    }
  }

  void call(int rank, int group, Collective op, std::int64_t size) {
    auto facts = recorder::facts_of(op, /*reduce_op=*/0, /*root=*/-1);
    recorder::add_tensor(facts, {.dtype = 6, .bytes = 4 * size, .sizes = std::array{size}});
    for (const auto& recorder : ranks_[rank]) recorder->end(recorder->begin_collective(group, facts));
  }

  [[nodiscard]] std::shared_ptr<JobRecord> whole() const { return whole_; }
  [[nodiscard]] std::vector<HostState> states() const {
    std::vector<HostState> states;
    for (const auto& host : hosts_) states.push_back(recorder::host_state_of_json(to_json(state_of_host(*host, 0))));
    return states;
  }
  // The records of both hosts, as one of them gets them.
  [[nodiscard]] std::shared_ptr<JobRecord> merged() const {
    auto all = JobRecord::create({.world_size = kRanks, .num_local = kRanks});
    for (int rank = 0; rank < kRanks; ++rank) apply_snapshot(snapshot_of(*hosts_[rank / 2], rank), *all, rank);
    return all;
  }

 private:
  std::shared_ptr<JobRecord> whole_;
  std::vector<std::shared_ptr<JobRecord>> hosts_;
  std::map<int, std::vector<std::unique_ptr<RankRecorder>>> ranks_;
};

std::optional<std::string> differing_group_of(const std::vector<HostState>& states) {
  return recorder::differing_group({&states[0], &states[1]});
}

// The ranks of one host agree; one host may part from the other at some call, and the calls after it agree again.
TEST(HostLaws, ADifferenceIsFoundUntilItIsForgottenAndDiagnosedAsOnOneHost) {
  expect_property(60, [] {
    Job job;
    const int num_calls = pick(1, 400), differing = pick(0, num_calls);
    const bool differs = one_in(2), is_of_pairs = one_in(3);
    for (int call = 0; call < num_calls; ++call) {
      const auto op = pick_from({Collective::kAllReduce, Collective::kBroadcast, Collective::kAllGather});
      const auto size = pick<std::int64_t>(1, 5);
      for (int rank = 0; rank < kRanks; ++rank)
        job.call(rank, is_of_pairs ? 1 : 0, op, size + (differs && call == differing && rank >= 2 ? 1 : 0));
    }
    const auto group = differing_group_of(job.states());
    RC_ASSERT(group.has_value() == differs);
    if (!group) return;
    RC_ASSERT(*group == (is_of_pairs ? "pair" : "world"));
    const auto merged = job.merged();
    const bool is_kept = num_calls - differing <= static_cast<int>(recorder::kCalls);
    RC_ASSERT(condemn_first_difference(*merged, *group) == is_kept);
    if (!is_kept) return;
    RC_ASSERT(condemn_first_difference(*job.whole(), *group));
    const auto call = recorder::JobReader(merged).condemned_call().value();
    RC_ASSERT(static_cast<int>(call.sequence) == differing);
    RC_ASSERT(diagnosis_json(diagnose_difference(call)) ==
              diagnosis_json(diagnose_difference(recorder::JobReader(job.whole()).condemned_call().value())));
  });
}

// Hosts tell their states at different moments: one may be ahead of the other.
TEST(HostLaws, AHostThatIsAheadDoesNotDiffer) {
  expect_property(60, [] {
    Job job;
    const int num_calls = pick(0, 300), ahead = pick(0, 40);
    for (int call = 0; call < num_calls + ahead; ++call) {
      const auto size = pick<std::int64_t>(1, 5);
      for (int rank = 0; rank < (call < num_calls ? kRanks : 2); ++rank)
        job.call(rank, 0, Collective::kAllReduce, size);
    }
    RC_ASSERT(!differing_group_of(job.states()));
  });
}

TEST(HostLaws, AHangOfTwoHostsHasTheViewOfOne) {
  expect_property(40, [] {
    Job job;
    const int num_calls = pick(0, 20), missing = pick(0, kRanks);
    for (int call = 0; call <= num_calls; ++call) {
      for (int rank = 0; rank < kRanks; ++rank) {
        if (call < num_calls || rank != missing) job.call(rank, 0, Collective::kAllReduce, 3);
      }
    }
    const auto text = [](const std::shared_ptr<JobRecord>& record) {
      return describe(recorder::JobReader(record).view().job);
    };
    RC_ASSERT(text(job.merged()) == text(job.whole()));
  });
}

TEST(HostLaws, TheSlowestRankCameLastMostOften) {
  expect_property(60, [] {
    Job job;
    std::array<int, kRanks> num_last{};
    const int num_calls = pick(0, 300);
    for (int call = 0; call < num_calls; ++call) {
      const int last = one_in(2) ? kRanks - 1 : pick(0, kRanks);
      for (int rank = 0; rank < kRanks; ++rank) {
        if (rank != last) job.call(rank, 0, Collective::kAllReduce, 3);
      }
      job.call(last, 0, Collective::kAllReduce, 3);
      if (num_calls - call <= static_cast<int>(recorder::kCalls)) ++num_last[last];
    }
    const auto slowest = recorder::slowest_rank(*job.whole());
    RC_ASSERT(slowest.has_value() == (num_calls > 0));
    if (!slowest) return;
    const auto most = std::max_element(num_last.begin(), num_last.end());
    RC_ASSERT(slowest->rank == most - num_last.begin());
    RC_ASSERT(slowest->num_last == *most);
    RC_ASSERT(slowest->num_collectives == std::min<int>(num_calls, recorder::kCalls));
    RC_ASSERT(slowest->late_ns > 0);
  });
}

TEST(HostLaws, ADamagedSnapshotIsAnError) {
  Job job;
  job.call(0, 0, Collective::kAllReduce, 3);
  const auto snapshot = recorder::snapshot_of(*job.whole(), 0);
  EXPECT_THROW(apply_snapshot(std::string_view(snapshot).substr(0, snapshot.size() - 1), *job.merged(), 0), CommError);
  EXPECT_THROW(apply_snapshot("short", *job.merged(), 0), CommError);
}

TEST(HostLaws, AnEndingIsReadAsItWasPublished) {
  const Job job;
  EXPECT_FALSE(recorder::ending_of(*job.whole()));
  const Diagnosis diagnosis{.kind = Diagnosis::Kind::kHang,
                            .ranks = {1, 3},
                            .op = "all_reduce",
                            .group = "world",
                            .sequence = 7,
                            .shapes = {{2, 3}, {}},
                            .where = "train.cpp:4",
                            .first_difference = Difference{"world", 5, {{{0}, "all_reduce()", ""}, {{1}, "it", "a:1"}}},
                            .waiting = {{0, "all_reduce", "world", 7, "train.cpp:4"}},
                            .text = "two\nlines"};
  recorder::publish_ending(*job.whole(), diagnosis);
  recorder::publish_ending(*job.whole(), {.text = "too late"});
  EXPECT_EQ(diagnosis_json(recorder::ending_of(*job.whole()).value()), diagnosis_json(diagnosis));
  EXPECT_TRUE(recorder::claim_to_print_ending(*job.whole()));
  EXPECT_FALSE(recorder::claim_to_print_ending(*job.whole()));
}

// Calls are missed, and counted, only if more of them are made between two collections than the record keeps.
TEST(HostLaws, ALogHasEveryCallOrCountsIt) {
  expect_property(60, [] {
    Job recorded;
    recorder::CallLog log(recorded.whole());
    std::uint64_t num_calls = 0;
    bool may_miss = false;
    for (int round = pick(0, 6); round > 0; --round) {
      const int calls = pick(0, 400);
      may_miss = may_miss || calls > static_cast<int>(recorder::kCalls);
      for (int call = 0; call < calls; ++call) recorded.call(1, 0, Collective::kAllReduce, call + 1);
      num_calls += calls;
      log.collect();
    }
    RC_ASSERT(log.calls()[1].size() + log.num_missed() == num_calls);
    RC_ASSERT(log.num_missed() == 0 || may_miss);
    std::set<std::int64_t> numbers;
    for (const auto& call : log.calls()[1]) {
      numbers.insert(call.sequence);
      RC_ASSERT(call.end_ns >= call.begin_ns);
    }
    RC_ASSERT(numbers.size() == log.calls()[1].size());
  });
}

}  // namespace
}  // namespace accel::testing::host_laws

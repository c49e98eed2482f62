// The backend that records the calls of real ranks, over a backend without communication.
#include "backends/recorded/recorded_backend.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "reference/diagnosis/diagnose.hpp"
#include "reference/recorder/job_reader.hpp"
#include "tests/support/message_of.hpp"

namespace accel::testing::recorded_backend_test {
namespace {

using recorder::JobReader;
using recorder::JobRecord;
using recorder::RankRecorder;
using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Waits as `on_wait` says.
class ScriptedWork : public c10d::Work {
 public:
  explicit ScriptedWork(std::function<bool(milliseconds)> on_wait)
      : c10d::Work(-1, c10d::OpType::ALLREDUCE), on_wait_(std::move(on_wait)) {}
  bool wait(milliseconds timeout) override { return on_wait_(timeout); }

 private:
  std::function<bool(milliseconds)> on_wait_;
};

class ScriptedBackend : public CollectiveBackend {
 public:
  ScriptedBackend(int rank, int size, std::function<bool(milliseconds)> on_wait)
      : CollectiveBackend(rank, size), on_wait_(std::move(on_wait)) {}
  const std::string getBackendName() const override { return "scripted"; }
  WorkPtr start(CollectiveArgs) override { return c10::make_intrusive<ScriptedWork>(on_wait_); }

 private:
  std::function<bool(milliseconds)> on_wait_;
};

// A GPU that notes what it waits for, and ends nothing.
class StuckGpu : public recorder::GpuWaits {
 public:
  explicit StuckGpu(RankRecorder& recorder) : recorder_(recorder) {}
  void begin(const RankRecorder::Begun& call) override { recorder_.set_gpu_wait(call.position); }

 private:
  RankRecorder& recorder_;
};

class RecordedBackendTest : public ::testing::Test {
 protected:
  static recorder::GroupRecorder group_of(std::shared_ptr<RankRecorder> recorder, std::string_view name = "world") {
    return recorder::GroupRecorder::create(std::move(recorder), name, std::vector{0, 1}).value();
  }
  c10::intrusive_ptr<c10d::Backend> backend_of(int rank, std::function<bool(milliseconds)> on_wait) {
    return recorder::recorded(c10::make_intrusive<ScriptedBackend>(rank, 2, std::move(on_wait)),
                              group_of(std::make_shared<RankRecorder>(record_, rank)));
  }
  c10::intrusive_ptr<c10d::Backend> gpu_backend_of(int rank, std::function<bool(milliseconds)> on_wait) {
    const auto recorder = std::make_shared<RankRecorder>(record_, rank);
    return recorder::recorded(c10::make_intrusive<ScriptedBackend>(rank, 2, std::move(on_wait)), group_of(recorder),
                              std::make_shared<StuckGpu>(*recorder));
  }
  [[nodiscard]] RankState state_of(int rank, const std::vector<recorder::ProcessEnd>& ends = {}) const {
    return JobReader(record_).view(ends).job.ranks[rank];
  }

  std::shared_ptr<JobRecord> record_ = JobRecord::create({.world_size = 2, .num_local = 2});
  std::vector<at::Tensor> tensors_{at::ones({2})};
};

// A look for a verdict ends by c10d's time-out; the collective may end at that moment.
TEST_F(RecordedBackendTest, ACollectiveThatEndsWithALookIsNoError) {
  int waits = 0;
  const auto backend = backend_of(0, [&](milliseconds timeout) {
    if (++waits > 1) return true;
    std::this_thread::sleep_for(timeout + milliseconds(1));
    throw std::runtime_error("Operation timed out!");
  });
  EXPECT_TRUE(backend->allreduce(tensors_)->wait());
  EXPECT_EQ(waits, 2);
}

// Works of several collectives ignore the time-out and fail again whenever they are waited for.
TEST_F(RecordedBackendTest, AnErrorThatComesLateIsThrownWithTheCall) {
  bool is_first = true;
  const auto backend = backend_of(1, [&](milliseconds) -> bool {
    if (std::exchange(is_first, false)) std::this_thread::sleep_for(milliseconds(300));
    throw std::runtime_error("Connection closed by peer");
  });
  const auto work = backend->allreduce(tensors_);
  EXPECT_THAT(message_of<CommError>([&] { work->wait(); }),
              HasSubstr("rank 1: all_reduce #0 of group world: Connection closed by peer"));
}

TEST_F(RecordedBackendTest, ATimeOutOfTheCallerIsKept) {
  const auto backend = backend_of(0, [&](milliseconds timeout) -> bool {
    std::this_thread::sleep_for(timeout);
    throw std::runtime_error("Operation timed out!");
  });
  const auto begin = std::chrono::steady_clock::now();
  const auto work = backend->allreduce(tensors_);
  EXPECT_THAT(message_of<CommError>([&] { work->wait(milliseconds(250)); }), HasSubstr("Operation timed out!"));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(250));
}

// A program may handle the error, and then computes or calls something else.
TEST_F(RecordedBackendTest, AFailedCallIsAWaitOnlyIfTheRankEndsInIt) {
  bool fails = true;
  const auto backend = backend_of(0, [&](milliseconds) {
    if (fails) throw std::runtime_error("Connection closed by peer");
    return true;
  });
  const auto work = backend->allreduce(tensors_);
  EXPECT_THROW(work->wait(), CommError);
  const std::vector<recorder::ProcessEnd> ended{{.has_ended = true}};
  EXPECT_EQ(describe(state_of(0)), "is running, after all_reduce #0 of group world");
  EXPECT_EQ(describe(state_of(0, ended)), "waits in all_reduce #0 of group world");
  fails = false;
  backend->allreduce(tensors_)->wait();
  EXPECT_EQ(describe(state_of(0, ended)), "has ended its program, after all_reduce #1 of group world");
}

// An error of the rank's own, such as a lack of memory, is not a consequence of another rank's end.
TEST_F(RecordedBackendTest, AnErrorOfTheRankIsNoWait) {
  const auto backend = backend_of(0, [&](milliseconds) -> bool { throw std::runtime_error("out of memory"); });
  EXPECT_THROW(backend->allreduce(tensors_)->wait(), CommError);
  EXPECT_EQ(describe(state_of(0, {{.has_ended = true}})), "has ended its program, after all_reduce #0 of group world");
}

// A script that starts two programs, one after the other.
TEST_F(RecordedBackendTest, ASecondProgramForgetsTheFirst) {
  RankRecorder(record_, 0).set_end(recorder::RankEnd::kLeft, "");
  const auto backend = backend_of(0, [](milliseconds) { return true; });
  backend->allreduce(tensors_)->wait();
  EXPECT_EQ(describe(state_of(0)), "is running, after all_reduce #0 of group world");
}

// Two groups may make the same mistake; only one of them has the verdict.
TEST_F(RecordedBackendTest, ADifferenceBesideTheVerdictIsAnErrorToo) {
  std::vector<c10::intrusive_ptr<c10d::Backend>> first, second;
  for (int rank = 0; rank < 2; ++rank) {
    const auto recorder = std::make_shared<RankRecorder>(record_, rank);
    const auto plain = c10::make_intrusive<ScriptedBackend>(rank, 2, [](milliseconds) { return true; });
    first.push_back(recorder::recorded(plain, group_of(recorder, "first")));
    second.push_back(recorder::recorded(plain, group_of(recorder, "second")));
  }
  for (auto& group : {first, second}) {
    group[0]->allreduce(tensors_);
    EXPECT_THROW(group[1]->barrier(), DiagnosedError);
  }
}

TEST_F(RecordedBackendTest, OldCallsAreForgotten) {
  RankRecorder rank(record_, 0);
  const auto group = rank.add_group("world", std::vector<int>{0, 1}).value();
  const auto first = rank.begin_collective(group, {.op = Collective::kBarrier});
  EXPECT_TRUE(call_at(record_->rank(0), first.position).has_value());
  for (std::size_t call = 0; call < recorder::kCalls; ++call)
    rank.begin_collective(group, {.op = Collective::kBarrier});
  EXPECT_FALSE(call_at(record_->rank(0), first.position).has_value());
}

TEST_F(RecordedBackendTest, GroupsBeyondTheRoomOfTheRecordAreNotRecorded) {
  const auto rank = std::make_shared<RankRecorder>(record_, 0);
  for (std::size_t group = 0; group < recorder::kGroups; ++group)
    EXPECT_TRUE(rank->add_group(fmt::format("group{}", group), std::vector<int>{0, 1}).has_value());
  EXPECT_FALSE(recorder::GroupRecorder::create(rank, "one more", std::vector{0, 1}).has_value());
}

// The record has room for 24 numbers of the shapes.
TEST_F(RecordedBackendTest, ADifferenceBeyondTheRoomOfTheRecordIsFound) {
  const auto call = [&](int rank, std::int64_t last_size) {
    std::vector<at::Tensor> tensors(20, at::ones({2}));
    tensors.back() = at::ones({last_size});
    backend_of(rank, [](milliseconds) { return true; })->allreduce_coalesced(tensors);
  };
  call(0, 2);
  EXPECT_THROW(call(1, 3), DiagnosedError);
}

// --- works that a GPU waits for --------------------------------------------------------------------------------------

// A time-out would make NCCL's work block the host until the collective has ended.
TEST_F(RecordedBackendTest, TheHostDoesNotWaitForAGpu) {
  std::vector<milliseconds> timeouts;
  const auto backend = gpu_backend_of(0, [&](milliseconds timeout) {
    timeouts.push_back(timeout);
    return true;
  });
  backend->allreduce(tensors_)->wait();
  EXPECT_EQ(timeouts, std::vector{kNoTimeout});
  EXPECT_EQ(describe(state_of(0)), "waits in all_reduce #0 of group world");
}

// They use transports of their own, and would wait for ever.
TEST_F(RecordedBackendTest, ATensorOnTheCpuDiffersFromOneOnAGpu) {
  gpu_backend_of(0, [](milliseconds) { return true; })->allreduce(tensors_);
  EXPECT_THAT(
      message_of<DiagnosedError>([&] { backend_of(1, [](milliseconds) { return true; })->allreduce(tensors_); }),
      AllOf(HasSubstr("rank 0: all_reduce(sum, float32 [2]) on a GPU"),
            HasSubstr("rank 1: all_reduce(sum, float32 [2]) on the CPU")));
}

// --- who can never continue ------------------------------------------------------------------------------------------

class StuckRanksTest : public ::testing::Test {
 protected:
  StuckRanksTest() {
    for (int rank = 0; rank < 3; ++rank) {
      ranks_.push_back(std::make_unique<RankRecorder>(record_, rank));
      for (const auto* group : {"a", "b"}) ranks_.back()->add_group(group, std::vector<int>{0, 1, 2});
    }
  }
  // The rank's only thread waits in its next collective of the group. The thread ends, but its wait stays in the
  // record, as that of a thread that has failed.
  void wait_in(int rank, int group) {
    std::thread([&] {
      const auto call = ranks_[rank]->begin_collective(group, {.op = Collective::kBarrier});
      record_->rank(rank).waits[0] = call.position;
    }).join();
  }
  // The GPU waits in the next collective of the group that this thread queues.
  void gpu_waits_in(int rank, int group) {
    ranks_[rank]->set_gpu_wait(ranks_[rank]->begin_collective(group, {.op = Collective::kBarrier}).position);
  }
  [[nodiscard]] std::vector<int> stuck(const std::vector<recorder::ProcessEnd>& ends = {}) const {
    return JobReader(record_).view(ends).stuck;
  }

  std::shared_ptr<JobRecord> record_ = JobRecord::create({.world_size = 3, .num_local = 3});
  std::vector<std::unique_ptr<RankRecorder>> ranks_;
};

TEST_F(StuckRanksTest, ARankThatWaitsForARunningOneIsNotStuck) {
  wait_in(0, 0);
  wait_in(1, 0);
  EXPECT_TRUE(stuck().empty());
}

TEST_F(StuckRanksTest, ARankThatWaitsForOneThatHasEndedIs) {
  wait_in(0, 0);
  wait_in(1, 0);
  EXPECT_EQ(stuck({{}, {}, {.has_ended = true}}), (std::vector{0, 1}));
}

// Rank 2 may come to either collective, and neither can end.
TEST_F(StuckRanksTest, RanksThatWaitForEachOtherAre) {
  wait_in(0, 0);
  wait_in(1, 1);
  EXPECT_EQ(stuck(), (std::vector{0, 1}));
}

// Its process is still there, and its own error explains more.
TEST_F(StuckRanksTest, ARankThatWaitsForOneThatHasFailedIsNot) {
  wait_in(0, 0);
  wait_in(1, 0);
  ranks_[2]->set_end(recorder::RankEnd::kFailed, "the disk is full");
  EXPECT_TRUE(stuck().empty());
}

// Another thread of the rank may do what the others wait for.
TEST_F(StuckRanksTest, ARankWithAThreadThatRunsIsNot) {
  wait_in(0, 0);
  wait_in(1, 1);
  ranks_[1]->begin_collective(0, {.op = Collective::kBarrier});  // by this thread, which lives on
  EXPECT_TRUE(stuck().empty());
}

// The thread of the rank has gone on, and may still do what rank 2 waits for.
TEST_F(StuckRanksTest, ARankWhoseGpuWaitsForARunningOneIsNot) {
  gpu_waits_in(0, 0);
  wait_in(1, 1);
  EXPECT_TRUE(stuck().empty());
  EXPECT_EQ(JobReader(record_).view().waiting, (std::vector{0, 1}));
}

TEST_F(StuckRanksTest, ARankWhoseGpuWaitsForOneThatHasEndedIs) {
  gpu_waits_in(0, 0);
  gpu_waits_in(1, 0);
  ranks_[2]->set_end(recorder::RankEnd::kLeft, "");
  EXPECT_EQ(stuck(), (std::vector{0, 1}));
}

TEST_F(StuckRanksTest, AGpuThatHasGoneOnWaitsForNobody) {
  gpu_waits_in(0, 0);
  ranks_[0]->set_gpu_wait(0);
  ranks_[2]->set_end(recorder::RankEnd::kLeft, "");
  EXPECT_TRUE(stuck().empty());
  EXPECT_TRUE(JobReader(record_).view().waiting.empty());
}

TEST_F(StuckRanksTest, ARankThatJoinedLongAgoHasJoined) {
  wait_in(0, 0);
  wait_in(1, 0);
  for (std::size_t call = 0; call < recorder::kCalls + 1; ++call)
    ranks_[2]->begin_collective(0, {.op = Collective::kBarrier});
  EXPECT_TRUE(stuck({{}, {}, {.has_ended = true}}).empty());
}

TEST_F(StuckRanksTest, ACollectiveThatAllHaveJoinedMayEnd) {
  for (int rank = 0; rank < 3; ++rank) wait_in(rank, 0);
  EXPECT_TRUE(stuck().empty());
}

}  // namespace
}  // namespace accel::testing::recorded_backend_test

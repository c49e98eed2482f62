// Processes that train together, of which some are killed or stopped at any moment: the others end with the state of
// an undisturbed training.
#include "backends/elastic/member.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <random>

#include "reference/core/splitmix64.hpp"
#include "tests/support/budget.hpp"

namespace accel::testing::member_test {
namespace {

using namespace accel::elastic;
using std::chrono::milliseconds;

constexpr int kMost = 8, kSteps = 60, kShards = 8;
constexpr int kMostStarted = 4 * kMost;  // ids of processes that are started anew come later

std::uint64_t mixed(std::uint64_t a, std::uint64_t b) { return splitmix64(splitmix64(a) + b); }
std::uint64_t gradient(std::int64_t step, int shard) { return mixed(step, shard) & 0xffff'ffff; }

std::uint64_t undisturbed() {
  std::uint64_t state = 1;
  for (int step = 0; step < kSteps; ++step) {
    std::uint64_t sum = 0;
    for (int shard = 0; shard < kShards; ++shard) sum += gradient(step, shard);
    state = mixed(state, sum);
  }
  return state;
}

// What the processes share in place of a network: gradients with the view that they belong to, and states.
struct Shared {
  struct State {
    std::atomic<std::uint64_t> value{1};
    std::atomic<std::int64_t> steps{0};
  };
  std::atomic<std::uint64_t> gradients[kSteps + 1][kShards];  // view + 1 in the upper 24 bits
  State states[kMostStarted];
  std::atomic<pid_t> pids[kMostStarted];
  std::atomic<int> num_views[kMostStarted], num_repeated[kMostStarted];
  std::atomic<int> slow{-1};  // the member whose next change takes long; -2: it has begun
};

bool has_ended(pid_t process) {
  std::ifstream in("/proc/" + std::to_string(process) + "/stat");
  std::string text;
  std::getline(in, text);
  const auto name_end = text.rfind(')');
  return name_end == std::string::npos || text.at(name_end + 2) == 'Z';
}

// One process of the training.
class Trainer {
 public:
  Trainer(Shared& shared, const MemberOptions& options, Mailbox& mailbox)
      : shared_(shared), options_(options), self_(options.self.id), member_(options, mailbox) {}

  void train() {
    const auto first = next_view();
    if (!first) throw NotAMember(EndReason::kNotAdmitted, "the others have ended");
    auto view = *first;
    auto& own = shared_.states[self_];
    while (own.steps <= kSteps) {  // the last one changes nothing: it is the end that all have to reach
      const auto step = own.steps.load();
      if (const auto sum = exchange(view, step)) {
        linger();  // others may agree on a view without this member's step
        const auto change = [&] {
          int self = static_cast<int>(self_);
          if (shared_.slow.compare_exchange_strong(self, -2)) usleep(1'000'000);
          linger();
          if (step < kSteps) own.value = mixed(own.value, *sum);
          own.steps = step + 1;
        };
        if (member_.complete(view, step + 1, change)) continue;
      }
      if (member_.has_finished_peer()) return;
      ++shared_.num_repeated[self_];
      const auto next = next_view();
      if (!next) return;
      view = *next;
    }
    member_.finish();
  }

 private:
  std::optional<View> next_view() {
    for (;;) {
      const auto next = member_.next_view();
      if (!next) return std::nullopt;
      const auto& view = *next;
      ++shared_.num_views[self_];
      auto& own = shared_.states[self_];
      if (has_state_ && own.steps == view.steps) return view;
      const auto& source = shared_.states[view.source];
      const auto value = source.value.load();
      if (source.steps != view.steps || has_ended(pid_of(view.source))) continue;  // it died: the transfer fails
      if (!member_.complete(view, view.steps, [&] {
            own.value = value;
            own.steps = view.steps;
          }))
        continue;
      has_state_ = true;
      return view;
    }
  }
  void linger() {
    if (std::uniform_int_distribution<int>(0, 9)(random_) == 0)
      usleep(std::uniform_int_distribution<int>(0, 5000)(random_));
  }
  [[nodiscard]] pid_t pid_of(MemberId member) const { return shared_.pids[member]; }

  // The sum over all shards, once all members of the view have come to the step.
  std::optional<std::uint64_t> exchange(const View& view, std::int64_t step) {
    const auto size = static_cast<int>(view.members.size());
    const auto rank =
        static_cast<int>(std::find(view.members.begin(), view.members.end(), self_) - view.members.begin());
    const std::uint64_t tag = static_cast<std::uint64_t>(view.number + 1) << 40;
    for (int shard = rank * kShards / size; shard < (rank + 1) * kShards / size; ++shard) {
      usleep(500);
      if (!member_.is_current(view)) return std::nullopt;
      shared_.gradients[step][shard] = tag | (step < kSteps ? gradient(step, shard) : 0);
    }
    std::uint64_t sum = 0;
    for (const auto& cell : shared_.gradients[step]) {
      while (cell >> 40 != tag >> 40) {
        if (!member_.is_current(view)) return std::nullopt;
        usleep(50);
      }
      sum += cell & 0xff'ffff'ffff;
    }
    return sum;
  }

  Shared& shared_;
  const MemberOptions options_;
  const MemberId self_;
  bool has_state_ = !options_.joins;
  Member member_;
  std::mt19937 random_{std::random_device()()};
};

enum Code { kTrained = 0, kGaveUp = 3, kCrashed = 4 };

class MemberTest : public ::testing::Test {
 protected:
  MemberTest()
      : shared_(new(mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Shared) {}
  ~MemberTest() override { munmap(shared_, sizeof(Shared)); }

  // The processes wait until the parent has told them who they all are.
  void start(int count, int min_ranks, milliseconds silence) {
    auto& mailboxes = mailboxes_;
    mailboxes.clear();
    MemberOptions options{.job = std::random_device()(), .tick = milliseconds(10), .silence = silence};
    options.membership.min_ranks = min_ranks;
    for (int id = 0; id < count; ++id) mailboxes.push_back(std::make_unique<Mailbox>("127.0.0.1"));
    int gate[2];
    ASSERT_EQ(pipe(gate), 0);
    for (int id = 0; id < count; ++id) {
      const pid_t process = fork();
      if (process == 0) {
        std::vector<pid_t> all(count);
        close(gate[1]);
        if (read(gate[0], all.data(), sizeof(pid_t) * count) != static_cast<ssize_t>(sizeof(pid_t) * count))
          _exit(kCrashed);
        for (int peer = 0; peer < count; ++peer)
          options.members.push_back({.id = peer, .pid = all[peer], .mailbox = mailboxes[peer]->address()});
        options.self = options.members[id];
        alarm(120);  // if it waits for ever
        _exit(run(options, *mailboxes[id]));
      }
      processes_.push_back(process);
      shared_->pids[id] = process;
    }
    options_ = options;
    num_first_ = count;
    for (int id = 0; id < count; ++id) ASSERT_GT(write(gate[1], processes_.data(), sizeof(pid_t) * count), 0);
    close(gate[0]);
    close(gate[1]);
  }

  int run(const MemberOptions& options, Mailbox& mailbox) {
    try {
      Trainer(*shared_, options, mailbox).train();
      return kTrained;
    } catch (const NotAMember& error) {
      std::fprintf(stderr, "member %d: %s\n", static_cast<int>(options.self.id), error.what());
      return kGaveUp;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "member %d: %s\n", static_cast<int>(options.self.id), error.what());
      return kCrashed;
    }
  }

  // A process that takes part in place of one that has ended. Returns its number.
  int start_anew() {
    const int id = static_cast<int>(processes_.size());
    auto options = options_;
    for (int peer = 0; peer < static_cast<int>(mailboxes_.size()); ++peer) {
      if (peer < id)
        options.members.push_back({.id = peer, .pid = processes_[peer], .mailbox = mailboxes_[peer]->address()});
    }
    mailboxes_.push_back(std::make_unique<Mailbox>("127.0.0.1"));
    shared_->states[id].steps = 0;
    const pid_t process = fork();
    if (process == 0) {
      shared_->pids[id] = getpid();
      options.self = {.id = id, .pid = getpid(), .mailbox = mailboxes_.back()->address()};
      options.joins = true;
      alarm(120);
      _exit(run(options, *mailboxes_.back()));
    }
    processes_.push_back(process);
    return id;
  }

  // By process: its exit code, or 128 + signal.
  std::vector<int> codes() {
    std::vector<int> codes;
    for (const auto process : processes_) {
      int status = 0;
      waitpid(process, &status, 0);
      codes.push_back(WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
    }
    return codes;
  }

  void expect_undisturbed_states(const std::vector<int>& codes) {
    for (std::size_t id = 0; id < codes.size(); ++id) {
      if (codes[id] != kTrained) continue;
      EXPECT_EQ(shared_->states[id].value, undisturbed()) << "member " << id;
    }
  }

  Shared* shared_;
  std::vector<pid_t> processes_;
  std::vector<std::unique_ptr<Mailbox>> mailboxes_;
  MemberOptions options_;
  int num_first_ = 0;
};

TEST_F(MemberTest, ProcessesThatNothingHappensToEndTogether) {
  start(5, 1, milliseconds(2000));
  EXPECT_EQ(codes(), std::vector<int>(5, kTrained));
  expect_undisturbed_states(std::vector<int>(5, kTrained));
  for (int id = 0; id < 5; ++id) EXPECT_EQ(shared_->num_repeated[id], 0);
}

// After an error of the transport the view has the same members and another number.
TEST_F(MemberTest, AMemberAloneGetsAnotherView) {
  Mailbox mailbox("127.0.0.1");
  const Contact own{.id = 7, .pid = getpid(), .mailbox = mailbox.address()};
  Member member({.self = own, .job = 1, .members = {own}}, mailbox);
  const auto first = *member.next_view(), second = *member.next_view();
  EXPECT_EQ(second.members, std::vector<MemberId>{7});
  EXPECT_GT(second.number, first.number);
  EXPECT_FALSE(member.is_current(first));
  EXPECT_FALSE(member.complete(first, 1, [] { ADD_FAILURE(); }));
  EXPECT_TRUE(member.complete(second, 1, [] {}));
  EXPECT_THROW(member.complete(second, 2, [] { throw StateError("bad"); }), StateError);
  EXPECT_TRUE(member.complete(second, 2, [] {}));
  member.finish();
}

TEST_F(MemberTest, AnAddressThatIsNoneIsAnError) {
  for (const auto* text : {"127.0.0.1", "nobody:1", "127.0.0.1:x", ""}) EXPECT_THROW(PostalAddress{text}, ConfigError);
  EXPECT_THROW(Mailbox{"192.0.2.1"}, ConfigError);
}

TEST_F(MemberTest, WhatStrangersSendChangesNothing) {
  start(3, 1, milliseconds(2000));
  const auto install = bytes_of({.job = 1, .from = 0, .content = Message(Install{{.number = 5, .members = {0}}})});
  const auto damaged = std::vector<std::uint8_t>(install.begin(), install.end() - 3);
  const std::vector<std::uint8_t> deep(60'000, 0x81);  // arrays in arrays
  const Mailbox stranger("127.0.0.1");
  for (int time = 0; time < 20; ++time) {
    for (const auto& mailbox : mailboxes_) {
      for (const auto& bytes : std::vector<std::vector<std::uint8_t>>{install, damaged, deep, {}, {0xff, 0x00}})
        stranger.send(PostalAddress(mailbox->address()), bytes);
    }
    usleep(1000);
  }
  EXPECT_EQ(codes(), std::vector<int>(3, kTrained));
  for (int id = 0; id < 3; ++id) EXPECT_EQ(shared_->num_repeated[id], 0);
}

TEST_F(MemberTest, BelowMinRanksTheOthersSaySo) {
  start(3, 3, milliseconds(2000));
  while (shared_->states[1].steps < 5) usleep(100);
  kill(processes_[1], SIGKILL);
  EXPECT_EQ(codes(), (std::vector<int>{kGaveUp, 128 + SIGKILL, kGaveUp}));
}

TEST_F(MemberTest, AStoppedMemberIsLeftOutAndKnowsItWhenItContinues) {
  start(4, 1, milliseconds(100));
  while (shared_->states[2].steps < 5) usleep(100);
  kill(processes_[2], SIGSTOP);
  for (const int id : {0, 1, 3}) {
    int status = 0;
    waitpid(processes_[id], &status, 0);
    EXPECT_EQ(WEXITSTATUS(status), kTrained);
    EXPECT_EQ(shared_->states[id].value, undisturbed());
  }
  kill(processes_[2], SIGCONT);
  int status = 0;
  waitpid(processes_[2], &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), kGaveUp);
}

// It gives signs of life, so that nobody takes it for stopped.
TEST_F(MemberTest, AChangeThatTakesLongIsWaitedFor) {
  shared_->slow = 1;
  start(6, 1, milliseconds(300));  // a majority of them could continue without it
  while (shared_->slow != -2) usleep(100);
  kill(processes_[2], SIGKILL);
  const std::vector<int> expected{kTrained, kTrained, 128 + SIGKILL, kTrained, kTrained, kTrained};
  EXPECT_EQ(codes(), expected);
  expect_undisturbed_states(expected);
}

// Any number of deaths, at any moments: in a step, while a view is agreed upon, at the end.
TEST_F(MemberTest, WhoeverDiesTheOthersEndAsIfNothingHadHappened) {
  const auto seed = std::random_device()();
  std::mt19937 random(seed);
  const auto draw = [&](int from, int to) { return std::uniform_int_distribution<int>(from, to)(random); };
  int num_deaths = 0, num_repeated = 0;
  for (int training = 0; training < num_cases(30); ++training) {
    new (shared_) Shared;
    processes_.clear();
    const int count = draw(2, kMost);
    start(count, 1, milliseconds(2000));
    std::vector<int> victims(count);
    for (int id = 0; id < count; ++id) victims[id] = id;
    std::shuffle(victims.begin(), victims.end(), random);
    victims.resize(draw(1, count - 1));
    for (const auto victim : victims) {
      usleep(draw(0, 3) == 0 ? 0 : draw(0, 30'000));
      kill(processes_[victim], SIGKILL);
    }
    const auto ends = codes();
    expect_undisturbed_states(ends);
    for (int id = 0; id < count; ++id) {
      const bool is_victim = std::find(victims.begin(), victims.end(), id) != victims.end();
      if (is_victim)
        EXPECT_TRUE(ends[id] == 128 + SIGKILL || ends[id] == kTrained);
      else
        EXPECT_EQ(ends[id], kTrained);
      num_deaths += ends[id] == 128 + SIGKILL;
      num_repeated += shared_->num_repeated[id];
    }
    ASSERT_FALSE(HasFailure()) << "seed " << seed << ", training " << training << " of " << count;
  }
  EXPECT_GT(num_deaths, 0);
  EXPECT_GT(num_repeated, 0);
}

TEST_F(MemberTest, AProcessThatIsStartedAnewTakesPart) {
  start(4, 1, milliseconds(2000));
  while (shared_->states[2].steps < 5) usleep(100);
  kill(processes_[2], SIGKILL);
  const int anew = start_anew();
  EXPECT_EQ(codes(), (std::vector<int>{kTrained, kTrained, 128 + SIGKILL, kTrained, kTrained}));
  for (const int id : {0, 1, 3, anew}) EXPECT_EQ(shared_->states[id].value, undisturbed()) << "member " << id;
  EXPECT_GT(shared_->num_views[anew], 0);
}

TEST_F(MemberTest, AProcessThatNobodyAnswersGivesUp) {
  start(2, 1, milliseconds(2000));
  EXPECT_EQ(codes(), (std::vector<int>(2, kTrained)));
  for (const auto process : processes_) EXPECT_TRUE(has_ended(process));
  start_anew();
  processes_.erase(processes_.begin(), processes_.begin() + 2);
  EXPECT_EQ(codes(), std::vector<int>{kGaveUp});
}

// In any order and at any moments; a process that is started anew may be killed too.
TEST_F(MemberTest, WhoeverDiesAndWhoeverJoinsAllEndAsIfNothingHadHappened) {
  const auto seed = std::random_device()();
  std::mt19937 random(seed);
  const auto draw = [&](int from, int to) { return std::uniform_int_distribution<int>(from, to)(random); };
  int num_joined = 0;
  for (int training = 0; training < num_cases(30); ++training) {
    new (shared_) Shared;
    processes_.clear();
    start(draw(2, kMost), 1, milliseconds(2000));
    std::vector<std::size_t> killed;
    for (int event = draw(1, 6); event > 0; --event) {
      usleep(draw(0, 3) == 0 ? 0 : draw(0, 30'000));
      const auto victim = static_cast<std::size_t>(draw(0, static_cast<int>(processes_.size()) - 1));
      const bool is_last = killed.size() + 1 >= processes_.size();
      if (std::find(killed.begin(), killed.end(), victim) == killed.end() && !is_last) {
        kill(processes_[victim], SIGKILL);
        killed.push_back(victim);
      }
      if (draw(0, 2) > 0 && static_cast<int>(processes_.size()) < kMostStarted) start_anew();
    }
    const auto ends = codes();
    expect_undisturbed_states(ends);
    bool has_trained = false;
    for (std::size_t id = 0; id < ends.size(); ++id) {
      const bool is_killed = std::find(killed.begin(), killed.end(), id) != killed.end();
      // Only one that came too late may have given up.
      const bool is_new = id >= static_cast<std::size_t>(num_first_);
      EXPECT_TRUE(ends[id] == kTrained || (is_killed && ends[id] == 128 + SIGKILL) || (is_new && ends[id] == kGaveUp))
          << "process " << id << ": " << ends[id];
      has_trained = has_trained || ends[id] == kTrained;
      num_joined += is_new && ends[id] == kTrained;
    }
    ASSERT_FALSE(HasFailure()) << "seed " << seed << ", training " << training;
  }
  EXPECT_GT(num_joined, 0);
}

}  // namespace
}  // namespace accel::testing::member_test

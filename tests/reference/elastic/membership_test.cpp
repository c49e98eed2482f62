// Members that agree on views under drawn schedules: messages that are late, lost or doubled, deaths that launchers see
// or do not see, hosts that cannot reach each other, processes that join.
#include "reference/elastic/membership.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <random>
#include <sstream>
#include <string>

namespace accel::testing::membership_test {
namespace {

using namespace accel::elastic;

// A group of members with the training beneath it: a step is complete when all members of a view have come to it, and
// then each takes it over at a time of its own, unless it has halted.
class World {
 public:
  World(std::uint64_t seed, int num_members) : random_(seed) {
    View first{.members = {}, .source = 0};
    for (int member = 0; member < num_members; ++member) first.members.push_back(member);
    options_.min_ranks = draw(1, 2);
    for (int member = 0; member < num_members; ++member) {
      add(std::make_unique<Membership>(member, first, options_));
      processes_.back().entered = first;
    }
    is_split_ = draw(0, 3) == 0;
    loses_ = draw(0, 2) == 0 ? draw(1, 30) : 0;
  }

  /// Everything that may happen, some of it wrong; then nothing that is wrong, for as long as it takes.
  void run() {
    const int num_events = draw(20, 400);
    for (int event = 0; event < num_events && problem_.empty(); ++event) step(/*is_rough=*/true);
    cut_.clear();
    loses_ = 0;
    for (auto& process : processes_) {
      if (runs(process)) continue;
      for (auto& other : processes_) learn_death(other, process.id);
    }
    std::string still = "it has not settled";
    for (int event = 0; event < 20000 && problem_.empty() && !still.empty(); ++event) {
      step(/*is_rough=*/false);
      if (event % 50 == 0) still = unsettled();
    }
    if (problem_.empty()) problem_ = still;
  }

  [[nodiscard]] const std::string& problem() const { return problem_; }
  /// That members have entered.
  [[nodiscard]] std::int64_t num_views() const { return num_views_; }
  [[nodiscard]] std::int64_t num_steps() const { return most_completed_; }

 private:
  struct Process {
    MemberId id = -1;
    std::unique_ptr<Membership> member;
    std::optional<View> entered = {};
    bool is_dead = false;
    std::optional<EndReason> end = {};
    std::int64_t reached = -1;            // the step of its view that it has come to
    std::vector<MemberId> contacts = {};  // of a process that joins
    std::map<std::int64_t, View> history = {};
  };
  struct Sent {
    MemberId from, to;
    Message message;
  };

  int draw(int from, int to) { return std::uniform_int_distribution<int>(from, to)(random_); }
  bool happens(int percent) { return draw(1, 100) <= percent; }

  void add(std::unique_ptr<Membership> member) {
    processes_.push_back({.id = static_cast<MemberId>(processes_.size()), .member = std::move(member)});
  }
  [[nodiscard]] bool runs(const Process& process) const { return !process.is_dead && !process.end; }
  Process* any_running() {
    std::vector<Process*> running;
    for (auto& process : processes_) {
      if (runs(process)) running.push_back(&process);
    }
    return running.empty() ? nullptr : running[draw(0, static_cast<int>(running.size()) - 1)];
  }

  void step(bool is_rough) {
    auto* const process = any_running();
    if (process == nullptr) return;
    const int kind = draw(0, 99);
    if (is_rough && kind < 3) return die(*process);
    if (is_rough && kind < 5) return join(*process);
    if (is_rough && kind < 7 && is_split_) return split();
    if (is_rough && kind < 9) return perform(*process, process->member->on_silence(draw(0, num_processes() - 1)));
    if (kind >= 9 && kind < 14) return report_a_death(*process);
    if (kind == 14) return process->member->on_sign_of_life(any_running()->id);
    if (kind < 20) return perform(*process, process->member->on_tick());
    if (kind < 45 || sent_.empty()) return train(*process);
    deliver();
  }
  [[nodiscard]] int num_processes() const { return static_cast<int>(processes_.size()); }

  void die(Process& process) {
    if (std::count_if(processes_.begin(), processes_.end(), [&](auto& other) { return runs(other); }) < 2) return;
    process.is_dead = true;
  }
  void join(Process& contact) {
    if (num_processes() >= 12) return;
    auto contacts = contact.entered ? contact.entered->members : std::vector<MemberId>{contact.id};
    add(std::make_unique<Membership>(num_processes(), contacts, options_));
    processes_.back().contacts = std::move(contacts);
  }
  void split() {
    cut_.clear();
    if (happens(40)) return;
    for (const auto& process : processes_) {
      if (happens(40)) cut_.insert(process.id);
    }
  }
  void report_a_death(Process& to) {
    for (auto& process : processes_) {
      if (!runs(process) && happens(50)) learn_death(to, process.id);
    }
  }
  void learn_death(Process& to, MemberId dead) {
    if (runs(to)) perform(to, to.member->on_death(dead));
  }

  void deliver() {
    const auto index = static_cast<std::size_t>(draw(0, static_cast<int>(sent_.size()) - 1));
    const auto sent = sent_[index];
    if (!happens(loses_ / 3)) sent_.erase(sent_.begin() + static_cast<std::ptrdiff_t>(index));  // else it comes again
    auto& to = processes_[sent.to];
    if (!runs(to) || happens(loses_) || cut_.contains(sent.from) != cut_.contains(sent.to)) return;
    perform(to, to.member->on_message(sent.from, sent.message));
  }

  void perform(Process& process, const Effects& effects) {
    for (const auto& effect : effects) std::visit([&](const auto& known) { perform(process, known); }, effect);
  }
  void perform(Process& process, const Send& send) { sent_.push_back({process.id, send.to, send.message}); }
  void perform(Process&, const Halt&) {}
  void perform(Process& process, const End& end) {
    process.end = end.reason;
    process.entered.reset();
  }
  void perform(Process& process, const Enter& enter) {
    const auto& view = enter.view;
    // What only those have entered who have ended is gone.
    for (const auto& other : processes_) {
      const auto known = other.history.find(view.number);
      if (runs(other) && known != other.history.end() && known->second != view)
        fail("two views of one number", process, view);
    }
    process.history[view.number] = view;
    ++num_views_;
    if (!view.contains(process.id)) fail("a view without the member that enters it", process, view);
    if (process.member->completed() > view.steps) fail("a member has completed more than its view", process, view);
    if (static_cast<int>(view.members.size()) < options_.min_ranks) fail("fewer members than the least", process, view);
    if (process.entered && process.entered->number >= view.number) fail("an older view", process, view);
    process.entered = view;
    process.reached = -1;
  }

  // A member copies the state if it has to, comes to the next step of its view, or takes over one that all have
  // reached.
  void train(Process& process) {
    if (!process.entered || !process.member->may_complete()) return;
    const auto& view = *process.entered;
    const auto completed = process.member->completed();
    if (completed < view.steps) return copy(process);
    if (process.reached < completed) {
      process.reached = completed;
      return;
    }
    // Ranks contribute once; what they have contributed stays, also if they die or halt later.
    auto& contributed = contributed_[{view.number, completed}];
    contributed.insert(process.id);
    const bool is_complete = std::all_of(view.members.begin(), view.members.end(),
                                         [&](auto member) { return contributed.contains(member); });
    if (!is_complete) return;
    process.member->set_completed(completed + 1);
    most_completed_ = std::max(most_completed_, completed + 1);
  }
  void copy(Process& process) {
    const auto& source = processes_[process.entered->source];
    const bool can_copy = runs(source) && source.entered && source.entered->number == process.entered->number &&
                          source.member->completed() == process.entered->steps;
    if (can_copy) process.member->set_completed(process.entered->steps);
  }

  // Who is left trains together, or has ended for a reason: "" then.
  [[nodiscard]] std::string unsettled() const {
    std::optional<View> last;
    for (const auto& process : processes_) {
      if (!runs(process) || !process.entered) continue;
      if (!last || last->number < process.entered->number) last = process.entered;
    }
    if (!last) return "";
    for (const auto member : last->members) {
      const auto& process = processes_[member];
      if (!runs(process)) return text_of("a member that does not run", process, *last);
      if (process.entered != last) return text_of("a member in another view", process, *last);
      if (process.member->is_halted()) return text_of("a halted member", process, *last);
      if (process.member->completed() < last->steps) return text_of("a member without the state", process, *last);
    }
    for (const auto& process : processes_) {
      const auto& contacts = process.contacts;
      const bool can_join = contacts.empty() || std::any_of(contacts.begin(), contacts.end(),
                                                            [&](auto contact) { return last->contains(contact); });
      if (runs(process) && can_join && !last->contains(process.id)) return text_of("a process outside", process, *last);
    }
    return most_completed_ < last->steps ? text_of("steps that nobody has completed", processes_.front(), *last) : "";
  }

  static std::string text_of(const std::string& what, const Process& process, const View& view) {
    std::ostringstream text;
    text << what << ": process " << process.id << ", view " << view.number << " of";
    for (const auto member : view.members) text << ' ' << member;
    text << " from step " << view.steps << "; completed " << process.member->completed();
    return text.str();
  }
  void fail(const std::string& what, const Process& process, const View& view) {
    if (problem_.empty()) problem_ = text_of(what, process, view);
  }

  std::mt19937_64 random_;
  MembershipOptions options_;
  std::vector<Process> processes_;
  std::vector<Sent> sent_;
  std::set<MemberId> cut_;  // cannot reach the others
  bool is_split_ = false;
  int loses_ = 0;  // percent of messages
  std::int64_t num_views_ = 0;
  std::map<std::pair<std::int64_t, std::int64_t>, std::set<MemberId>> contributed_;  // by view and step
  std::int64_t most_completed_ = 0;
  std::string problem_;
};

// Messages by hand.
class Script {
 public:
  explicit Script(int num_members, int patience = 1) {
    View first{.source = 0};
    for (int member = 0; member < num_members; ++member) first.members.push_back(member);
    for (int member = 0; member < num_members; ++member)
      members_.push_back(std::make_unique<Membership>(member, first, MembershipOptions{.patience = patience}));
  }
  Membership& operator[](MemberId member) { return *members_[member]; }
  void add(std::vector<MemberId> contacts) {
    members_.push_back(std::make_unique<Membership>(static_cast<MemberId>(members_.size()), std::move(contacts),
                                                    MembershipOptions{.patience = 1}));
  }
  /// Performs what a member does; its messages wait for `deliver`.
  void perform(MemberId member, const Effects& effects) {
    for (const auto& effect : effects) {
      if (const auto* send = std::get_if<Send>(&effect)) sent_.push_back({member, *send});
      if (const auto* enter = std::get_if<Enter>(&effect)) entered_[member] = enter->view;
    }
  }
  /// Delivers what waits from one member to another, in its order, until nothing waits.
  void deliver(MemberId from, MemberId to) {
    for (std::size_t index = 0; index < sent_.size();) {
      if (sent_[index].first != from || sent_[index].second.to != to) {
        ++index;
        continue;
      }
      const auto send = sent_[index].second;
      sent_.erase(sent_.begin() + static_cast<std::ptrdiff_t>(index));
      perform(to, members_[to]->on_message(from, send.message));
      index = 0;
    }
  }
  template <typename Kind>
  [[nodiscard]] bool waits(MemberId from) const {
    return std::any_of(sent_.begin(), sent_.end(), [&](const auto& sent) {
      return sent.first == from && std::holds_alternative<Kind>(sent.second.message);
    });
  }
  [[nodiscard]] std::vector<MemberId> view_of(MemberId member) { return entered_[member].members; }

 private:
  std::vector<std::unique_ptr<Membership>> members_;
  std::vector<std::pair<MemberId, Send>> sent_;
  std::map<MemberId, View> entered_;
};

// Three of five decide and die; their decision is still on its way when the other two have agreed without them.
TEST(MembershipTest, WhatTheDeadHaveDecidedComesTooLate) {
  Script script(5);
  script.perform(0, script[0].on_silence(4));
  for (const MemberId member : {1, 2}) {
    script.deliver(0, member);
    script.deliver(member, 0);
  }
  script.perform(0, script[0].on_tick());
  for (const MemberId member : {1, 2}) {
    script.deliver(0, member);
    script.deliver(member, 0);
  }
  ASSERT_EQ(script.view_of(0), (std::vector<MemberId>{0, 1, 2}));
  for (const MemberId dead : {0, 1, 2}) script.perform(3, script[3].on_death(dead));
  script.deliver(3, 4);
  script.deliver(4, 3);
  script.deliver(3, 4);
  script.deliver(0, 4);  // the decision of the dead
  EXPECT_FALSE(script[4].has_ended());
  script.deliver(4, 3);
  script.deliver(3, 4);
  EXPECT_EQ(script.view_of(3), (std::vector<MemberId>{3, 4}));
  EXPECT_EQ(script.view_of(4), (std::vector<MemberId>{3, 4}));
}

// 0 and 1 decide on a view with the process 3, which asks at once, and die; 2 has not learned of it.
TEST(MembershipTest, AProcessThatJoinsEntersAfterAllOthers) {
  Script script(3);
  script.add({0});
  script.perform(3, script[3].on_tick());
  script.deliver(3, 0);
  for (const MemberId member : {1, 2}) {
    script.deliver(0, member);
    script.deliver(member, 0);
  }
  script.deliver(0, 1);
  script.deliver(1, 0);
  ASSERT_EQ(script.view_of(0), (std::vector<MemberId>{0, 1, 2, 3}));
  script.deliver(0, 3);
  script.deliver(3, 0);
  script.deliver(0, 3);
  script.perform(3, script[3].on_tick());
  script.deliver(3, 0);
  script.deliver(0, 3);
  EXPECT_TRUE(script.view_of(3).empty());
}

// 3 learns that 0, 1 and 2 have died when 4 has promised it a ballot that named no dead.
TEST(MembershipTest, ADeathInsideARoundIsToldBeforeItCounts) {
  Script script(5);
  script.perform(0, script[0].on_silence(3));
  for (const MemberId member : {1, 2, 4}) {
    script.deliver(0, member);
    script.deliver(member, 0);
  }
  script.perform(0, script[0].on_tick());
  for (const MemberId member : {1, 2}) {
    script.deliver(0, member);
    script.deliver(member, 0);
  }
  ASSERT_EQ(script.view_of(0), (std::vector<MemberId>{0, 1, 2, 4}));
  script.perform(3, script[3].on_silence(0));
  for (int tick = 0; tick < 5; ++tick) script.perform(3, script[3].on_tick());
  script.deliver(3, 4);
  script.deliver(4, 3);
  for (const MemberId dead : {0, 1, 2}) script.perform(3, script[3].on_death(dead));
  for (int turn = 0; turn < 4; ++turn) {
    script.deliver(3, 4);
    script.deliver(4, 3);
  }
  script.deliver(0, 4);  // the decision of the dead
  EXPECT_EQ(script.view_of(3), script.view_of(4));
  EXPECT_EQ(script.view_of(4), (std::vector<MemberId>{3, 4}));
}

// 0 has entered what 1 has accepted, and is out of reach before it tells the others.
TEST(MembershipTest, AnotherProposerTakesOverWhatMayBeDecided) {
  Script script(3);
  const Proposal accepted{{1, 0}, {.number = 1, .members = {0, 1, 2}, .source = 0}};
  script.perform(1, script[1].on_message(0, Accept{0, accepted}));
  script.perform(1, script[1].on_silence(0));
  for (int tick = 0; tick < 2; ++tick) script.perform(1, script[1].on_tick());
  for (int turn = 0; turn < 2; ++turn) {
    script.deliver(1, 2);
    script.deliver(2, 1);
    script.perform(1, script[1].on_tick());
  }
  EXPECT_EQ(script.view_of(1), (std::vector<MemberId>{0, 1, 2}));
}

TEST(MembershipTest, APromiseExcludesLowerBallots) {
  Membership member(2, {.members = {0, 1, 2}, .source = 0}, {});
  (void)member.on_message(0, Prepare{0, {5, 0}});
  const auto effects = member.on_message(1, Prepare{0, {3, 1}});
  ASSERT_EQ(effects.size(), 1);
  EXPECT_TRUE(std::holds_alternative<Refused>(std::get<Send>(effects.front()).message));
}

TEST(MembershipTest, NobodyJoinsAViewThatLeavesAMemberBehindWhoMayLive) {
  Script script(3);
  script.add({0});
  script.perform(3, script[3].on_tick());
  script.deliver(3, 0);
  script.deliver(0, 1);
  script.deliver(1, 0);
  script.perform(0, script[0].on_tick());
  script.deliver(0, 1);
  script.deliver(1, 0);
  EXPECT_EQ(script.view_of(0), (std::vector<MemberId>{0, 1}));
  // Once the launcher has seen that it has died, the process may come in.
  script.perform(0, script[0].on_death(2));
  script.deliver(0, 1);
  script.deliver(1, 0);
  script.deliver(0, 1);
  script.deliver(1, 0);
  EXPECT_EQ(script.view_of(0), (std::vector<MemberId>{0, 1, 3}));
}

TEST(MembershipTest, AMinorityProposesNothing) {
  Script script(3);
  script.perform(0, script[0].on_silence(1));
  for (int tick = 0; tick < 20; ++tick) script.perform(0, script[0].on_tick());
  EXPECT_FALSE(script.waits<Accept>(0));
  EXPECT_TRUE(script[0].is_halted());
}

TEST(MembershipTest, AMinorityEndsInTheEnd) {
  Script script(3);
  script.perform(0, script[0].on_silence(1));
  for (int tick = 0; tick < 200; ++tick) script.perform(0, script[0].on_tick());
  EXPECT_TRUE(script[0].has_ended());
}

std::uint64_t fresh_seed() {
  const char* const given = std::getenv("ACCEL_FRESH_SEED");
  return given == nullptr ? std::random_device()() : std::strtoull(given, nullptr, 10);
}

bool is_long() {
  const char* const budget = std::getenv("ACCEL_TEST_BUDGET");
  return budget != nullptr && std::string(budget) == "long";
}

// Each of two members hears that the other one lives, and the only message was lost.
TEST(MembershipTest, ALostMessageIsSentAgainToAMemberThatLives) {
  Membership member(0, {.members = {0, 1}, .source = 0}, {});
  const auto num_prepares = [](const Effects& effects) {
    return std::count_if(effects.begin(), effects.end(), [](const auto& effect) {
      const auto* send = std::get_if<Send>(&effect);
      return send != nullptr && std::holds_alternative<Prepare>(send->message);
    });
  };
  EXPECT_EQ(num_prepares(member.on_silence(1)), 1);
  std::int64_t again = 0;
  for (int tick = 0; tick < 20; ++tick) {
    member.on_sign_of_life(1);
    again += num_prepares(member.on_tick());
  }
  EXPECT_GT(again, 0);
  EXPECT_FALSE(member.has_ended());
}

TEST(MembershipTest, MembersAgreeUnderEverySchedule) {
  const auto first = fresh_seed();
  const int num_schedules = is_long() ? 200'000 : 10'000;
  std::int64_t views = 0, steps = 0;
  for (int schedule = 0; schedule < num_schedules; ++schedule) {
    const auto seed = first + static_cast<std::uint64_t>(schedule);
    World world(seed, 2 + schedule % 7);
    world.run();
    ASSERT_EQ(world.problem(), "") << "seed " << seed << " of " << 2 + schedule % 7 << " members";
    views += world.num_views();
    steps += world.num_steps();
  }
  EXPECT_GT(views, num_schedules);  // the schedules change views, and train in them
  EXPECT_GT(steps, num_schedules);
}

}  // namespace
}  // namespace accel::testing::membership_test

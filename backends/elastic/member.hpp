#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "backends/elastic/contact.hpp"
#include "backends/elastic/datagram.hpp"
#include "backends/elastic/mailbox.hpp"
#include "reference/core/thread_safety.hpp"
#include "reference/elastic/elastic_ranks.hpp"
#include "reference/elastic/membership.hpp"

/// A process of an elastic job: agrees with the others on who trains, while its program computes.
///
///     Member member({.self = own, .job = job, .members = all}, mailbox);
///     auto view = member.next_view();
///     while (step < num_steps) {
///       const auto sum = exchange(*view, [&] { return member.is_current(*view); });   // gives up if it is not
///       if (sum && member.complete(*view, step + 1, [&] { apply(*sum); })) ++step;
///       else if (view = member.next_view(); view) recover(*view);
///       else return;
///     }
///     member.finish();
///
/// A thread answers messages (elastic/membership.hpp), sees at once that a process of this machine has ended, and after
/// a while that one does not answer. Thread rule: `is_current` and
/// `has_finished_peer` any thread, the others one thread.
namespace accel::elastic {

struct MemberOptions {
  Contact self;
  std::uint64_t job = 0;  ///< equal on all members, and drawn: strangers cannot guess it
  /// All members of the first view, in the order of their ranks, with this one. Of a process that joins: those that it
  /// asks, of which some may have ended.
  std::vector<Contact> members = {};
  bool joins = false;
  MembershipOptions membership{.patience = 20, .give_up = 400};
  std::chrono::milliseconds tick{50};           ///< of the membership
  std::chrono::milliseconds silence{10'000};    ///< after which a member is taken for stopped or out of reach
  std::chrono::milliseconds admission{30'000};  ///< within which a process that joins becomes a member, or gives up
};

class Member {
 public:
  /// Throws ConfigError for an invalid address, and for members that are not unique, or lack this one unless it joins.
  /// `mailbox` must outlive it.
  Member(const MemberOptions& options, Mailbox& mailbox);
  ~Member();
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  [[nodiscard]] MemberId id() const { return options_.self.id; }
  /// Of a member of a view that it has entered. Throws std::out_of_range for another.
  [[nodiscard]] Contact contact(MemberId member) const;
  /// Whether the training in this view continues. After it returns false, a wait for
  /// members of the view may never end.
  [[nodiscard]] bool is_current(const View& view) const { return current_.load() == view.number; }
  /// Changes the state from one step to the next, or to one that was received: no view is agreed upon meanwhile. Does
  /// nothing and returns false if the view is not current. If `change` throws, this member counts as without state.
  bool complete(const View& view, std::int64_t steps, const std::function<void()>& change);
  /// Waits for a view other than the last one; a process that joins, for the first with it. If the last one is current,
  /// as after an error of the transport, a new one is asked for. Nothing if a member has ended the training: then it is
  /// complete, whatever has failed since. Throws NotAMember.
  std::optional<View> next_view();
  /// After a step that all members of the view have completed, and that is the last. Tells the others, and waits until
  /// they have come here too, but for a few seconds at most.
  void finish();
  /// Whether a member has ended the training.
  [[nodiscard]] bool has_finished_peer() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Known {
    Contact contact;
    PostalAddress address;
    int process = -1;  // a descriptor that can be read when the process has ended; -1: none
    Clock::time_point heard = {};
    bool is_done = false, is_dead = false;
  };

  void run();
  void learn(const Contact& contact) ACCEL_REQUIRES(mutex_);
  void read_mailbox() ACCEL_REQUIRES(mutex_);
  void answer(const Datagram& datagram) ACCEL_REQUIRES(mutex_);
  void note_deaths() ACCEL_REQUIRES(mutex_);
  void tick() ACCEL_REQUIRES(mutex_);
  void perform(const Effects& effects) ACCEL_REQUIRES(mutex_);
  void perform(const Send& send) ACCEL_REQUIRES(mutex_);
  void perform(const Halt& halt) ACCEL_REQUIRES(mutex_);
  void perform(const Enter& enter) ACCEL_REQUIRES(mutex_);
  void perform(const End& end) ACCEL_REQUIRES(mutex_);
  void send_alive(MemberId to) ACCEL_REQUIRES(mutex_);
  void send_alive_to_all() ACCEL_REQUIRES(mutex_);
  [[nodiscard]] std::vector<MemberId> neighbours(int direction) const ACCEL_REQUIRES(mutex_);
  [[nodiscard]] bool all_are_done() const ACCEL_REQUIRES(mutex_);
  [[nodiscard]] bool is_one_done() const ACCEL_REQUIRES(mutex_);
  [[nodiscard]] bool may_be_admitted() const ACCEL_REQUIRES(mutex_);
  void wake() const;

  const MemberOptions options_;
  Mailbox& mailbox_;
  int wake_ = -1;                          // an eventfd
  std::atomic<std::int64_t> current_{-1};  // number of the view; -1: the member has halted
  mutable Mutex mutex_;
  std::condition_variable changed_;
  Membership membership_ ACCEL_GUARDED_BY(mutex_);
  std::map<MemberId, Known> known_ ACCEL_GUARDED_BY(mutex_);
  std::optional<View> entered_ ACCEL_GUARDED_BY(mutex_);
  std::int64_t given_ ACCEL_GUARDED_BY(mutex_) = -1;  // number of the last view that next_view has returned
  std::optional<EndReason> end_ ACCEL_GUARDED_BY(mutex_);
  bool is_changing_ ACCEL_GUARDED_BY(mutex_) = false;  // the program changes the state
  bool is_done_ ACCEL_GUARDED_BY(mutex_) = false;
  bool stops_ ACCEL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace accel::elastic

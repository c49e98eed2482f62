#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

/// Agreement on which ranks train together, as a state machine without time, threads or network.
///
///     Membership member(/*self=*/2, first_view, {.min_ranks = 2});
///     for (const auto& effect : member.on_death(0)) perform(effect);             // the transport's work
///     for (const auto& effect : member.on_message(from, message)) perform(effect);
///
/// The members of a view agree on the next one by single-decree Paxos: a member prepares a ballot, takes over what a
/// quorum has accepted, or proposes those who have promised, and installs what a quorum accepts. A quorum is a majority
/// of the view, or all of its members that are not known to be dead; who is known to be dead is fenced: nothing that it
/// has sent counts any more. So of a split network only a side with a majority goes on, while any number of deaths that
/// launchers have seen may be survived.
///
/// Processes join only views that leave nobody behind who may live, and enter them after all others have, so that
/// nobody who lives can take an earlier view for the last one.
///
/// A member that promises stops training until the next view: what it has completed is then final, and the view begins
/// with the most that a member has completed. Thread rule: one thread at a time. Source: Lamport, "Paxos Made Simple".
namespace accel::elastic {

using MemberId = std::int64_t;  ///< of a process; never used again

/// The members that train together.
struct View {
  std::int64_t number = 0;
  std::vector<MemberId> members = {};             ///< in the order of their ranks; the survivors keep their order
  std::int64_t steps = 0;                         ///< completed before it
  MemberId source = -1;                           ///< has completed them, and gives its state to the others
  std::vector<MemberId> joined = {};              ///< of the members: those of no earlier view
  std::vector<MemberId> outside = {};             ///< of earlier views: left out, and not known to be dead
  std::map<MemberId, std::string> contacts = {};  ///< of members that have joined: how the transport reaches them
  bool operator==(const View&) const = default;
  [[nodiscard]] bool contains(MemberId member) const;
};

struct Ballot {
  std::int64_t round = 0;
  MemberId proposer = -1;
  auto operator<=>(const Ballot&) const = default;
};

struct Proposal {
  Ballot ballot = {};
  View view = {};
  bool operator==(const Proposal&) const = default;
};

/// What members tell each other. `view`: the number of the view that the sender has installed.
struct Prepare {
  std::int64_t view = 0;
  Ballot ballot = {};
  std::vector<MemberId> dead = {};  ///< whom the receiver fences
};
struct Promise {
  std::int64_t view = 0;
  Ballot ballot = {};
  std::int64_t completed = 0;  ///< steps; -1: it has no state
  std::optional<Proposal> accepted = {};
};
struct Accept {
  std::int64_t view = 0;
  Proposal proposal = {};
};
struct Accepted {
  std::int64_t view = 0;
  Ballot ballot = {};
};
/// The receiver has promised a higher ballot.
struct Refused {
  std::int64_t view = 0;
  Ballot promised = {};
};
/// A view that is decided.
struct Install {
  View decided = {};
};
/// The sender has missed the view that the receiver works on.
struct Behind {
  std::int64_t view = 0;
};
/// The sender has entered its view.
struct Entered {
  std::int64_t view = 0;
  bool is_answer = false;  ///< to the receiver's own
};
/// A process asks to become a member: it never enters the view of this number or an earlier one.
struct Join {
  std::int64_t view = -1;
  std::string contact = {};  ///< how the transport reaches the sender
};
/// Members of the view have died, as the sender knows; the receiver is the first who proposes another one.
struct Need {
  std::int64_t view = 0;
  std::vector<MemberId> dead = {};
};
using Message = std::variant<Prepare, Promise, Accept, Accepted, Refused, Install, Behind, Entered, Join, Need>;

/// What the owner has to do.
struct Send {
  MemberId to = -1;
  Message message = {};
};
/// Stop training at once: give up the step under way.
struct Halt {};
/// Train in this view, from its step on.
struct Enter {
  View view = {};
};
enum class EndReason {
  kTooFew,      ///< fewer members than min_ranks are left
  kNoMajority,  ///< this member can reach no quorum
  kRemoved,     ///< the others have gone on without this member
  kNoState,     ///< no member that is left has completed a step or the start
  kNotAdmitted  ///< of the transport: a process that joins was in no view for too long, or nobody is left
};
/// The training of this member is over.
struct End {
  EndReason reason{};
};
using Effect = std::variant<Send, Halt, Enter, End>;
using Effects = std::vector<Effect>;

struct MembershipOptions {
  int min_ranks = 1;
  int patience = 3;   ///< ticks that a proposer waits for members that give no sign of life; others wait as long for
                      ///< each before
  int give_up = 100;  ///< ticks without a quorum before the member ends
};

class Membership {
 public:
  /// A member of the first view, which has completed no step.
  Membership(MemberId self, View first, MembershipOptions options);
  /// A process that joins: it asks `asked`, again and again, and waits for a view that contains it. `contact`: its own.
  Membership(MemberId self, std::vector<MemberId> asked, MembershipOptions options, std::string contact = {});

  Effects on_message(MemberId from, const Message& message);
  /// The process has certainly ended.
  Effects on_death(MemberId member);
  /// The member does not answer: it may be stopped, slow, or out of reach.
  Effects on_silence(MemberId member);
  /// The member runs, but may have no time to answer: a proposer waits for its promise.
  void on_sign_of_life(MemberId member);
  /// Time has passed.
  Effects on_tick();

  /// Before the state of a further step is changed; no event may come between this and `set_completed`. False: the
  /// member has halted, and the step does not count.
  [[nodiscard]] bool may_complete() const { return !halted_ && !ended_; }
  /// The state of a step is complete, or a copy of it has arrived.
  void set_completed(std::int64_t steps) { completed_ = steps; }

  [[nodiscard]] const View& view() const { return view_; }
  [[nodiscard]] std::int64_t completed() const { return completed_; }
  [[nodiscard]] bool has_ended() const { return ended_; }
  [[nodiscard]] bool is_halted() const { return halted_; }

 private:
  struct Round {
    Ballot ballot = {};
    std::map<MemberId, Promise> promises = {};
    std::optional<View> proposed = {};
    std::set<MemberId> accepted = {};
    int ticks = 0;  // since it has begun
    int quiet = 0;  // ticks since an awaited member has given a sign of life
  };

  void handle(MemberId from, const Prepare& message);
  void handle(MemberId from, const Promise& message);
  void handle(MemberId from, const Accept& message);
  void handle(MemberId from, const Accepted& message);
  void handle(MemberId from, const Refused& message);
  void handle(MemberId from, const Install& message);
  void handle(MemberId from, const Behind& message);
  void handle(MemberId from, const Entered& message);
  void handle(MemberId from, const Join& message);
  void handle(MemberId from, const Need& message);

  // Whether a message about a view belongs to the one that is installed; answers it otherwise.
  bool is_current(MemberId from, std::int64_t view);
  void tell_view(MemberId to);
  void learn_death(MemberId member);
  void need_change();
  void tell_need();
  void begin_round();
  void try_to_propose();
  void try_to_decide();
  [[nodiscard]] std::optional<View> accepted_by_others() const;
  [[nodiscard]] View next_view() const;
  void install(const View& view);
  void halt();
  void end(EndReason reason);
  void send(MemberId to, Message message) { effects_.push_back(Send{to, std::move(message)}); }
  template <typename Members>
  [[nodiscard]] bool is_quorum(const Members& members) const;
  [[nodiscard]] std::vector<MemberId> living() const;
  [[nodiscard]] int place() const;
  [[nodiscard]] bool is_gone(MemberId outside) const;
  [[nodiscard]] bool can_admit() const;
  [[nodiscard]] std::vector<MemberId> awaited() const;
  void tell_entered(bool to_all);
  Effects take() { return std::exchange(effects_, {}); }

  const MemberId self_;
  const MembershipOptions options_;
  std::vector<MemberId> asked_;  // by a process that joins
  std::string contact_;          // of the same
  View view_;
  std::int64_t completed_ = 0;
  std::set<MemberId> dead_;
  std::map<MemberId, std::string> joining_;  // their contacts
  std::set<MemberId> entered_;               // members that have entered the view
  std::set<MemberId> returned_;              // processes outside that know the view and ask to join
  std::map<MemberId, std::int64_t> told_;    // to a process that joins: the last view, by sender
  Ballot promised_, highest_;
  std::optional<Proposal> accepted_;
  std::optional<Round> round_;
  bool is_member_ = true, halted_ = false, needs_change_ = false, ended_ = false;
  int waited_ = 0;  // ticks since a change is needed
  Effects effects_;
};

}  // namespace accel::elastic

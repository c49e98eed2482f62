// Note [Quorums and fences]
// Two rounds of one view may have quorums without a common member only if one of them is "all who are not known to be
// dead" and each member of the other one is known to be dead there. What that one has decided can then be known to
// living members only through messages of the dead. A member fences those whom a Prepare names before it promises:
// what has arrived earlier it answers with the newer view, what arrives later it ignores. So the living members of a
// view never enter two later ones of one number.
//
// Processes that join are no members of the view that admits them, so the quorums of that view say nothing about them.
// Therefore a view admits them only if all its members that may live go with them, none of an earlier view was left
// behind alive, and they enter after these: nobody is left who could form another view of that number.
#include "reference/elastic/membership.hpp"

#include <algorithm>
#include <utility>

namespace accel::elastic {
namespace {

constexpr int kTurns = 8;  // of members that begin a round one after the other

}  // namespace

bool View::contains(MemberId member) const {
  return std::find(members.begin(), members.end(), member) != members.end();
}

Membership::Membership(MemberId self, View first, MembershipOptions options)
    : self_(self), options_(options), view_(std::move(first)), completed_(view_.steps) {}

Membership::Membership(MemberId self, std::vector<MemberId> asked, MembershipOptions options, std::string contact)
    : self_(self),
      options_(options),
      asked_(std::move(asked)),
      contact_(std::move(contact)),
      view_{.number = -1},
      completed_(-1),
      is_member_(false),
      halted_(true) {}

// --- events ---------------------------------------------------------------------------------------------------------

Effects Membership::on_message(MemberId from, const Message& message) {
  if (!ended_ && !dead_.contains(from)) std::visit([&](const auto& known) { handle(from, known); }, message);
  return take();
}

Effects Membership::on_death(MemberId member) {
  if (!ended_) learn_death(member);
  return take();
}

void Membership::learn_death(MemberId member) {
  if (!dead_.insert(member).second) return;
  joining_.erase(member);
  if (is_member_ && (view_.contains(member) || (!joining_.empty() && can_admit()))) {
    // A quorum without the dead counts only if its members fence them, so that another ballot tells them.
    if (round_)
      begin_round();
    else
      need_change();
  }
}

Effects Membership::on_silence(MemberId member) {
  if (!ended_ && is_member_ && view_.contains(member)) need_change();
  return take();
}

void Membership::on_sign_of_life(MemberId member) {
  if (!round_ || round_->proposed || round_->promises.contains(member) || !view_.contains(member)) return;
  round_->quiet = 0;
  waited_ = 0;
}

Effects Membership::on_tick() {
  if (ended_) return take();
  if (!is_member_) {
    for (const auto member : asked_) {
      if (!dead_.contains(member)) send(member, Join{told_.contains(member) ? told_[member] : -1, contact_});
    }
    return take();
  }
  tell_entered(/*to_all=*/false);
  for (const auto member : view_.outside) {  // so that it ends, and others may join
    if (place() == 0 && !is_gone(member)) send(member, Install{view_});
  }
  if (!needs_change_ && !halted_) return take();
  ++waited_;
  if (waited_ > options_.give_up) {
    end(EndReason::kNoMajority);
  } else if (round_) {
    ++round_->ticks;
    ++round_->quiet;
    if (!round_->proposed) try_to_propose();
    // Messages may have been lost, or another round may have taken the promises.
    if (round_ && round_->ticks > 2 * options_.patience) begin_round();
  } else if (waited_ % (options_.patience * (1 + place() % kTurns)) == 0) {
    begin_round();
  } else if (!halted_ && waited_ % options_.patience == 0) {
    tell_need();
  }
  return take();
}

// --- messages -------------------------------------------------------------------------------------------------------

bool Membership::is_current(MemberId from, std::int64_t view) {
  if (view == view_.number && is_member_) return true;
  if (view < view_.number)
    tell_view(from);
  else
    send(from, Behind{view_.number});
  return false;
}

// A process that joins learns of its view when all others have entered it.
void Membership::tell_view(MemberId to) {
  const bool joins = std::find(view_.joined.begin(), view_.joined.end(), to) != view_.joined.end();
  if (!joins || awaited().empty()) send(to, Install{view_});
}

void Membership::handle(MemberId from, const Prepare& message) {
  if (!is_current(from, message.view)) return;
  highest_ = std::max(highest_, message.ballot);
  if (message.ballot < promised_) return send(from, Refused{view_.number, promised_});
  for (const auto member : message.dead) dead_.insert(member);
  promised_ = message.ballot;
  if (round_ && round_->ballot < promised_) round_.reset();
  halt();
  send(from, Promise{view_.number, promised_, completed_, accepted_});
}

void Membership::handle(MemberId from, const Promise& message) {
  if (!is_current(from, message.view) || !round_ || round_->ballot != message.ballot || round_->proposed) return;
  round_->promises[from] = message;
  try_to_propose();
}

void Membership::handle(MemberId from, const Accept& message) {
  if (!is_current(from, message.view)) return;
  const auto& ballot = message.proposal.ballot;
  highest_ = std::max(highest_, ballot);
  if (ballot < promised_) return send(from, Refused{view_.number, promised_});
  promised_ = ballot;
  if (round_ && round_->ballot < promised_) round_.reset();
  halt();
  accepted_ = message.proposal;
  send(from, Accepted{view_.number, ballot});
}

void Membership::handle(MemberId from, const Accepted& message) {
  if (!is_current(from, message.view) || !round_ || round_->ballot != message.ballot) return;
  round_->accepted.insert(from);
  try_to_decide();
}

void Membership::handle(MemberId /*from*/, const Refused& message) {
  if (message.view == view_.number) highest_ = std::max(highest_, message.promised);
}

// A process that joins may have heard of a view that only the dead have entered, so it compares numbers of one sender.
void Membership::handle(MemberId from, const Install& message) {
  const auto& view = message.decided;
  if (is_member_) {
    if (view.number > view_.number) install(view);
    return;
  }
  const auto told = told_.find(from);
  if (told != told_.end() && view.number <= told->second) return;
  told_[from] = view.number;
  if (view.contains(self_)) install(view);
}

void Membership::handle(MemberId from, const Behind& message) {
  if (is_member_ && message.view < view_.number) tell_view(from);
}

void Membership::handle(MemberId from, const Entered& message) {
  if (!is_current(from, message.view)) return;
  entered_.insert(from);
  if (!message.is_answer) send(from, Entered{view_.number, /*is_answer=*/true});
}

void Membership::handle(MemberId from, const Join& message) {
  if (!is_member_) return;
  if (view_.contains(from)) return tell_view(from);
  joining_[from] = message.contact;
  if (message.view >= view_.number)
    returned_.insert(from);
  else
    send(from, Install{view_});  // so that it knows the view
  if (can_admit()) need_change();
}

// The sender may see at once what this member would notice after a while: the death of a process of its machine.
void Membership::handle(MemberId from, const Need& message) {
  if (!is_current(from, message.view)) return;
  for (const auto member : message.dead) learn_death(member);
}

// --- processes that join --------------------------------------------------------------------------------------------

// Whether a process that was left outside can never act in a view up to this one.
bool Membership::is_gone(MemberId outside) const { return dead_.contains(outside) || returned_.contains(outside); }

bool Membership::can_admit() const {
  return std::all_of(view_.outside.begin(), view_.outside.end(), [&](auto member) { return is_gone(member); });
}

// Members whose entry a process that joins waits for.
std::vector<MemberId> Membership::awaited() const {
  auto members = living();
  std::erase_if(members, [&](auto member) {
    return member == self_ || entered_.contains(member) ||
           std::find(view_.joined.begin(), view_.joined.end(), member) != view_.joined.end();
  });
  return members;
}

void Membership::tell_entered(bool to_all) {
  for (const auto member : to_all ? living() : awaited()) {
    if (member != self_) send(member, Entered{view_.number});
  }
}

// --- rounds ---------------------------------------------------------------------------------------------------------

std::vector<MemberId> Membership::living() const {
  std::vector<MemberId> living;
  std::copy_if(view_.members.begin(), view_.members.end(), std::back_inserter(living),
               [&](auto member) { return !dead_.contains(member); });
  return living;
}

// Among the living members.
int Membership::place() const {
  const auto members = living();
  return static_cast<int>(std::find(members.begin(), members.end(), self_) - members.begin());
}

template <typename Members>
bool Membership::is_quorum(const Members& members) const {
  const auto others = living();
  const auto has_all = std::all_of(others.begin(), others.end(), [&](auto member) { return members.contains(member); });
  return has_all || 2 * members.size() > view_.members.size();
}

// The first living member acts at once, the others if nothing has happened for a while.
void Membership::need_change() {
  const bool is_new = !std::exchange(needs_change_, true);
  if (is_new) waited_ = 0;
  if (round_) return;
  if (place() == 0)
    begin_round();
  else if (is_new)
    tell_need();
}

// Who has lost a member tells the one that acts on it. What else needs a view, such as a process that joins, only this
// member knows, and proposes it in its turn.
void Membership::tell_need() {
  if (living().size() < view_.members.size()) send(living().front(), Need{view_.number, {dead_.begin(), dead_.end()}});
}

void Membership::begin_round() {
  highest_ = {std::max(highest_, promised_).round + 1, self_};
  promised_ = highest_;
  round_ = Round{.ballot = promised_};
  halt();
  round_->promises[self_] = {view_.number, promised_, completed_, accepted_};
  const std::vector<MemberId> dead(dead_.begin(), dead_.end());
  for (const auto member : living()) {
    if (member != self_) send(member, Prepare{view_.number, promised_, dead});
  }
  try_to_propose();
}

// Members that do not answer are waited for, since without them their shards have to be taken over.
void Membership::try_to_propose() {
  const auto members = living();
  const bool has_all =
      std::all_of(members.begin(), members.end(), [&](auto member) { return round_->promises.contains(member); });
  if (!has_all && (round_->quiet < options_.patience || !is_quorum(round_->promises))) return;
  round_->proposed = accepted_by_others().value_or(next_view());
  accepted_ = Proposal{round_->ballot, *round_->proposed};
  round_->accepted.insert(self_);
  for (const auto& [member, promise] : round_->promises) {
    if (member != self_) send(member, Accept{view_.number, *accepted_});
  }
  try_to_decide();
}

// What a quorum may have accepted already: that of the highest ballot.
std::optional<View> Membership::accepted_by_others() const {
  std::optional<Proposal> accepted;
  for (const auto& [member, promise] : round_->promises) {
    if (promise.accepted && (!accepted || accepted->ballot < promise.accepted->ballot)) accepted = promise.accepted;
  }
  return accepted ? std::optional(accepted->view) : std::nullopt;
}

// Those who have promised, and those who may join.
View Membership::next_view() const {
  View next{.number = view_.number + 1, .steps = -1};
  for (const auto member : view_.members) {
    const auto promise = round_->promises.find(member);
    if (promise == round_->promises.end() || dead_.contains(member)) continue;
    next.members.push_back(member);
    if (promise->second.completed > next.steps) {
      next.steps = promise->second.completed;
      next.source = member;
    }
  }
  for (const auto* const left : {&view_.members, &view_.outside}) {
    std::copy_if(left->begin(), left->end(), std::back_inserter(next.outside),
                 [&](auto member) { return !next.contains(member) && !is_gone(member); });
  }
  if (next.outside.empty()) {
    for (const auto& [member, contact] : joining_) {
      next.joined.push_back(member);
      next.members.push_back(member);
      next.contacts[member] = contact;
    }
  }
  for (const auto& [member, contact] : view_.contacts) {
    if (next.contains(member)) next.contacts[member] = contact;
  }
  return next;
}

void Membership::try_to_decide() {
  if (!is_quorum(round_->accepted)) return;
  const auto decided = *round_->proposed;
  for (const auto member : living()) {
    if (member != self_) send(member, Install{decided});
  }
  install(decided);
}

void Membership::install(const View& view) {
  view_ = view;
  promised_ = highest_ = {};
  accepted_.reset();
  round_.reset();
  waited_ = 0;
  needs_change_ = false;
  if (!view.contains(self_)) return end(EndReason::kRemoved);
  is_member_ = true;
  for (const auto member : view.members) joining_.erase(member);
  if (view.source < 0) return end(EndReason::kNoState);
  if (static_cast<int>(view.members.size()) < options_.min_ranks) return end(EndReason::kTooFew);
  halted_ = false;
  entered_.clear();
  returned_.clear();
  effects_.push_back(Enter{view});
  tell_entered(/*to_all=*/true);
  const bool has_lost = living().size() < view.members.size();
  if (has_lost || (!joining_.empty() && can_admit())) need_change();
}

void Membership::halt() {
  if (!std::exchange(halted_, true)) effects_.push_back(Halt());
}

void Membership::end(EndReason reason) {
  if (std::exchange(ended_, true)) return;
  halted_ = true;
  effects_.push_back(End{reason});
}

}  // namespace accel::elastic

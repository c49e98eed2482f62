#include "backends/elastic/member.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "reference/core/errors.hpp"
#include "reference/core/system/resource_limits.hpp"

namespace accel::elastic {
namespace {

constexpr int kWatched = 2;    // members before this one in the view, of which it expects signs of life
constexpr int kFarewells = 3;  // at once, since this member may end before the next tick
constexpr auto kFarewell = std::chrono::seconds(3);  // within which the others learn that this member is done

Membership membership_of(const MemberOptions& options) {
  std::vector<MemberId> ids;
  for (const auto& member : options.members) ids.push_back(member.id);
  const std::set<MemberId> unique(ids.begin(), ids.end());
  check_config(unique.size() == ids.size() && unique.contains(options.self.id) != options.joins,
               "elastic: the members that rank {} knows are not unique, or have {}", options.self.id,
               options.joins ? "its number" : "not its number");
  if (options.joins) return {options.self.id, ids, options.membership, text_of(options.self)};
  return {options.self.id, View{.members = ids, .source = ids.front()}, options.membership};
}

const char* text_of(EndReason reason) {
  switch (reason) {
    case EndReason::kTooFew: return "fewer ranks than min_ranks are left";
    case EndReason::kNoMajority:
      return "this rank reaches no majority of the ranks, and does not know that the others have ended";
    case EndReason::kRemoved: return "the other ranks have continued without this one, which did not answer";
    case EndReason::kNoState: return "no rank that is left has the state of the training";
    case EndReason::kNotAdmitted: return "this rank could not join: no rank that trains has answered";
  }
  return "";
}

}  // namespace

Member::Member(const MemberOptions& options, Mailbox& mailbox)
    : options_(options), mailbox_(mailbox), membership_(membership_of(options)) {
  for (const auto& member : options.members) (void)PostalAddress(member.mailbox);  // throws before anything is open
  wake_ = checked_descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "a member of an elastic job");
  const MutexLock lock(mutex_);
  if (!options.joins) {
    entered_ = membership_.view();
    current_ = entered_->number;
  }
  known_.emplace(options.self.id, Known{options.self, PostalAddress(options.self.mailbox)});
  for (const auto& member : options.members) learn(member);
  thread_ = start_thread("a member of an elastic job", [this] { run(); });
}

void Member::learn(const Contact& contact) {
  if (known_.contains(contact.id)) return;
  auto& known =
      known_.emplace(contact.id, Known{contact, PostalAddress(contact.mailbox), -1, Clock::now()}).first->second;
  if (contact.pid == 0 || contact.machine != options_.self.machine) return;
  known.process = static_cast<int>(syscall(SYS_pidfd_open, contact.pid, 0));
  if (known.process >= 0 || errno != ESRCH) return;
  known.is_dead = true;
  perform(membership_.on_death(contact.id));
}

Member::~Member() {
  {
    const MutexLock lock(mutex_);
    stops_ = true;
  }
  wake();
  thread_.join();
  for (const auto& [id, known] : known_) {
    if (known.process >= 0) close(known.process);
  }
  close(wake_);
}

void Member::wake() const {
  const std::uint64_t one = 1;
  (void)!::write(wake_, &one, sizeof one);
}

// --- of the program -------------------------------------------------------------------------------------------------

bool Member::complete(const View& view, std::int64_t steps, const std::function<void()>& change) {
  {
    const MutexLock lock(mutex_);
    if (!membership_.may_complete() || membership_.view().number != view.number) return false;
    is_changing_ = true;
  }
  const auto end = [&](std::int64_t completed) {
    const MutexLock lock(mutex_);
    membership_.set_completed(completed);
    is_changing_ = false;
    wake();
  };
  try {
    change();
  } catch (...) {
    end(-1);  // it may be damaged, so that no other member may take it over
    throw;
  }
  end(steps);
  return true;
}

std::optional<View> Member::next_view() {
  MutexLock lock(mutex_);
  if (entered_ && entered_->number == given_ && current_ == given_) perform(membership_.on_silence(id()));
  const auto deadline = Clock::now() + options_.admission;
  while (!end_ && !is_one_done() && !(entered_ && entered_->number > given_ && current_ == entered_->number)) {
    if (entered_)
      changed_.wait(lock.native());
    else if (may_be_admitted() && Clock::now() < deadline)
      changed_.wait_until(lock.native(), deadline);
    else
      end_ = EndReason::kNotAdmitted;
  }
  if (is_one_done()) return std::nullopt;
  if (end_) throw NotAMember(*end_, fmt::format("elastic: {}", text_of(*end_)));
  given_ = entered_->number;
  return *entered_;
}

bool Member::has_finished_peer() const {
  const MutexLock lock(mutex_);
  return is_one_done();
}

Contact Member::contact(MemberId member) const {
  const MutexLock lock(mutex_);
  return known_.at(member).contact;
}

// Of a process that joins: whether somebody may answer.
bool Member::may_be_admitted() const {
  return std::any_of(known_.begin(), known_.end(),
                     [&](const auto& known) { return known.first != id() && !known.second.is_dead; });
}

bool Member::is_one_done() const {
  return std::any_of(known_.begin(), known_.end(), [](const auto& peer) { return peer.second.is_done; });
}

bool Member::all_are_done() const {
  for (const auto member : membership_.view().members) {
    const auto& known = known_.at(member);
    if (member != id() && !known.is_done && !known.is_dead) return false;
  }
  return true;
}

void Member::finish() {
  MutexLock lock(mutex_);
  is_done_ = true;
  for (int time = 0; time < kFarewells; ++time) send_alive_to_all();
  const auto deadline = Clock::now() + kFarewell;
  while (!end_ && !all_are_done()) {
    if (changed_.wait_until(lock.native(), deadline) == std::cv_status::timeout) break;
  }
}

// --- of the thread --------------------------------------------------------------------------------------------------

void Member::run() {
  auto next_tick = Clock::now() + options_.tick;
  for (;;) {
    std::vector<pollfd> waiting{{mailbox_.descriptor(), POLLIN, 0}, {wake_, POLLIN, 0}};
    {
      const MutexLock lock(mutex_);
      if (is_changing_) waiting.erase(waiting.begin());
      for (const auto& [id, known] : known_) {
        if (known.process >= 0 && !is_changing_) waiting.push_back({known.process, POLLIN, 0});
      }
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(next_tick - Clock::now());
    poll(waiting.data(), waiting.size(), std::max(0, static_cast<int>(left.count())));
    std::uint64_t ignored = 0;
    (void)!::read(wake_, &ignored, sizeof ignored);
    const MutexLock lock(mutex_);
    if (stops_) return;
    if (is_changing_) {  // nothing is agreed upon meanwhile
      if (Clock::now() < next_tick) continue;
      next_tick = Clock::now() + options_.tick;
      send_alive_to_all();
      continue;
    }
    read_mailbox();  // before deaths: what the dead have sent is as valid as before
    note_deaths();
    if (Clock::now() < next_tick) continue;
    tick();
    next_tick = Clock::now() + options_.tick;
  }
}

void Member::read_mailbox() {
  std::vector<std::uint8_t> bytes;
  while (mailbox_.receive(bytes)) {
    const auto datagram = datagram_of(options_.job, bytes);
    if (!datagram) continue;
    try {
      answer(*datagram);
    } catch (const ConfigError&) {  // an address that is none
    }
  }
}

void Member::answer(const Datagram& datagram) {
  const auto* const message = std::get_if<Message>(&datagram.content);
  const auto* const join = message == nullptr ? nullptr : std::get_if<Join>(message);
  if (join != nullptr) {
    const auto contact = contact_of(join->contact);
    if (contact.id != datagram.from) return;
    learn(contact);
    if (is_done_) return send_alive(datagram.from);
  }
  const auto from = known_.find(datagram.from);
  if (from == known_.end()) return;
  from->second.heard = Clock::now();
  membership_.on_sign_of_life(datagram.from);
  if (message != nullptr) return perform(membership_.on_message(datagram.from, *message));
  if (!std::get<Alive>(datagram.content).is_done || from->second.is_done) return;
  from->second.is_done = true;
  changed_.notify_all();
}

void Member::note_deaths() {
  for (auto& [id, known] : known_) {
    if (known.process < 0) continue;
    pollfd process{known.process, POLLIN, 0};
    if (poll(&process, 1, 0) != 1 || (process.revents & POLLIN) == 0) continue;
    close(std::exchange(known.process, -1));
    known.is_dead = true;
    changed_.notify_all();
    perform(membership_.on_death(id));
  }
}

// The members that follow this one in the view, or precede it.
std::vector<MemberId> Member::neighbours(int direction) const {
  const auto& members = membership_.view().members;
  const auto size = static_cast<int>(members.size());
  const auto place = static_cast<int>(std::find(members.begin(), members.end(), id()) - members.begin());
  std::vector<MemberId> found;
  for (int distance = 1; distance <= std::min(kWatched, size - 1) && place < size; ++distance)
    found.push_back(members[(place + direction * distance + size) % size]);
  return found;
}

void Member::send_alive(MemberId to) {
  mailbox_.send(known_.at(to).address, bytes_of({.job = options_.job, .from = id(), .content = Alive{is_done_}}));
}

void Member::send_alive_to_all() {
  for (const auto member : membership_.view().members) {
    if (member != id()) send_alive(member);
  }
}

void Member::tick() {
  if (end_) return;
  const auto now = Clock::now();
  if (is_done_) return send_alive_to_all();
  for (const auto member : neighbours(+1)) send_alive(member);
  for (const auto member : neighbours(-1)) {
    auto& known = known_.at(member);
    if (known.is_done || now - known.heard < options_.silence) continue;
    known.heard = now;
    perform(membership_.on_silence(member));
  }
  perform(membership_.on_tick());
}

void Member::perform(const Effects& effects) {
  for (const auto& effect : effects)
    std::visit([this](const auto& known) ACCEL_REQUIRES(mutex_) { perform(known); }, effect);
}

void Member::perform(const Send& send) {
  const auto to = known_.find(send.to);
  if (to == known_.end()) return;
  mailbox_.send(to->second.address, bytes_of({.job = options_.job, .from = id(), .content = send.message}));
}

void Member::perform(const Halt& /*halt*/) {
  current_ = -1;
  changed_.notify_all();
}

void Member::perform(const Enter& enter) {
  for (const auto& [member, contact] : enter.view.contacts) learn(contact_of(contact));
  const auto now = Clock::now();
  for (auto& [member, known] : known_) known.heard = now;
  entered_ = enter.view;
  current_ = enter.view.number;
  changed_.notify_all();
}

void Member::perform(const End& end) {
  end_ = end.reason;
  current_ = -1;
  changed_.notify_all();
}

}  // namespace accel::elastic

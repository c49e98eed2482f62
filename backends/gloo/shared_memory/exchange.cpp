// The message protocol of the shared memory transport: see Note [Who moves the bytes] in exchange.hpp. Error texts are
// those of Gloo's TCP transport, since users and tests know them. All functions run under `mutex_`; callers of private
// functions hold it.
#include "backends/gloo/shared_memory/exchange.hpp"

#include <sys/socket.h>

#include <algorithm>

#include "reference/core/errors.hpp"

namespace accel::gloo {
namespace {

// A long message is copied in pieces, so that the receiver copies one piece while the sender copies the next.
constexpr std::size_t kPieceBytes = 128 << 10;

// Slots of Gloo's collectives have a prefix in the highest byte; those of send() are the caller's tag. Source:
// gloo/types.h, Slot.
constexpr bool is_of_a_collective(std::uint64_t slot) { return slot >> 56 != 0; }

std::string closed_by(int peer) { return fmt::format("Connection closed by peer [rank {}]", peer); }

}  // namespace

// --- operations ------------------------------------------------------------------------------------------------------

void Exchange::send(Buffer& buffer, int to, std::uint64_t slot, const void* bytes, std::size_t num_bytes) {
  const std::lock_guard lock(mutex_);
  auto& peer = peers_.at(to);
  if (to == rank_) throw LinkError("shared memory: a rank does not send to itself");
  if (!peer.error.empty()) throw LinkError(peer.error);
  Outgoing message{.header = {.slot = slot, .num_bytes = num_bytes},
                   .bytes = static_cast<const std::byte*>(bytes),
                   .buffer = &buffer};
  // Gloo only counts finished operations of a buffer, so messages of one slot must finish in order: an eager message
  // must not overtake an offer that the receiver has not accepted yet.
  const bool is_behind_an_offer =
      std::ranges::any_of(peer.offered, [&](const auto& offer) { return offer.second.header.slot == slot; });
  if (num_bytes > links_.layout.capacity / 4 || is_behind_an_offer || !is_of_a_collective(slot)) {
    message.header.kind = Kind::kOffer;
    message.header.id = peer.num_offers++;
    peer.offered.emplace(message.header.id, message);
  }
  peer.outgoing.push_back(message);
  // Armed even if push() succeeds at once: an offer stays pending until the peer accepts it.
  arm_watcher();
  push(to);
}

void Exchange::receive(Buffer& buffer, std::vector<int> from, std::uint64_t slot, void* bytes, std::size_t num_bytes) {
  const std::lock_guard lock(mutex_);
  const Posted posted{.buffer = &buffer,
                      .from = std::move(from),
                      .slot = slot,
                      .bytes = static_cast<std::byte*>(bytes),
                      .num_bytes = num_bytes};
  const auto wanted = [&](const Early& early) {
    return early.header.slot == slot && std::ranges::count(posted.from, early.from) > 0;
  };
  // `early_` is in order of arrival, so the first match is the oldest message of this slot.
  const auto early = std::find_if(early_.begin(), early_.end(), wanted);
  arm_watcher();
  if (early == early_.end()) {
    if (has_no_sender(posted)) throw LinkError(peers_.at(posted.from.front()).error);
    posted_.push_back(posted);
    return;
  }
  const auto message = std::move(*early);
  early_.erase(early);
  if (message.header.num_bytes > num_bytes || message.header.kind == Kind::kOffer)
    return deliver(message.from, message.header, posted);
  std::copy_n(message.bytes.get(), message.header.num_bytes, posted.bytes);
  done(&buffer, Direction::kReceive, message.from);
}

void Exchange::abort(Buffer& buffer, Direction direction) {
  const std::lock_guard lock(mutex_);
  (direction == Direction::kSend ? buffer.send : buffer.receive).is_aborted = true;
  changed(&buffer);
}

void Exchange::forget(Buffer& buffer) {
  const std::lock_guard lock(mutex_);
  std::erase_if(posted_, [&](const Posted& posted) { return posted.buffer == &buffer; });
  for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank) {
    auto& peer = peers_[rank];
    if (peer.incoming.buffer == &buffer) peer.incoming.buffer = nullptr;
    for (auto& [id, incoming] : peer.accepted) {
      if (incoming.buffer == &buffer) incoming.buffer = nullptr;
    }
    const auto is_its = [&](const auto& message) { return message.buffer == &buffer; };
    const bool is_offered = std::ranges::any_of(peer.offered, [&](const auto& entry) { return is_its(entry.second); });
    // An announced message cannot be withdrawn, since the other side would wait for its bytes. So the link is closed.
    if (is_offered || std::ranges::any_of(peer.outgoing, is_its)) fail(rank, "Socket closed");
  }
}

void Exchange::close(int peer) {
  const std::lock_guard lock(mutex_);
  fail(peer, fmt::format("Socket closed [rank {}]", peer));
}

// --- waiting ---------------------------------------------------------------------------------------------------------

bool Exchange::is_over(const Buffer& buffer, const Buffer::Side& side) const {
  return side.num_done > 0 || side.is_aborted || !buffer.error.empty();
}

bool Exchange::wait(Buffer& buffer, Direction direction, int* peer, std::chrono::milliseconds timeout) {
  // Bounded by a year, since adding a huge time-out to now() would overflow.
  const auto deadline =
      std::chrono::steady_clock::now() + std::min<std::chrono::milliseconds>(timeout, std::chrono::hours(24 * 365));
  auto& side = direction == Direction::kSend ? buffer.send : buffer.receive;
  std::unique_lock lock(mutex_);
  while (!is_over(buffer, side) && std::chrono::steady_clock::now() < deadline) {
    if (!has_leader_) {
      lead(lock, buffer, side, deadline);
      continue;
    }
    // In order of arrival: the longest waiting follower is woken to become the next leader.
    const auto place = followers_.insert(followers_.end(), &buffer);
    buffer.changed.wait_until(lock, deadline, [&] { return is_over(buffer, side) || !has_leader_; });
    followers_.erase(place);
  }
  if (!has_leader_ && !followers_.empty()) followers_.front()->changed.notify_all();
  if (side.is_aborted) return side.is_aborted = false;  // an abort ends one wait only, as over Gloo's TCP
  if (side.num_done == 0 && !buffer.error.empty()) throw LinkError(buffer.error);
  if (side.num_done == 0) {
    // After a time-out the streams may be in the middle of a message. Gloo closes all pairs then, too, with these
    // words.
    fail_all("Application timeout caused pair closure");
    const auto* const what = direction == Direction::kSend ? "send" : "recv";
    throw LinkError(fmt::format("Timed out waiting {}ms for {} operation to complete", timeout.count(), what));
  }
  --side.num_done;
  if (peer != nullptr) *peer = side.peer;
  return true;
}

// Waits as the leader. Holds the lock on entry and return; releases it only while asleep. The doorbell's count is read
// before the rings are inspected (sleep_unless), so a message that arrives in between prevents the sleep. Another
// thread that finishes the leader's operation rings the doorbell too, in changed().
void Exchange::lead(std::unique_lock<std::mutex>& lock, Buffer& buffer, const Buffer::Side& side,
                    std::chrono::steady_clock::time_point deadline) {
  has_leader_ = true;
  leading_ = &buffer;
  const auto look = [&] {
    progress();
    const bool is_done = is_over(buffer, side);
    lock.unlock();
    return is_done;
  };
  do {
    doorbell_.sleep_unless(look, deadline - std::chrono::steady_clock::now());
    lock.lock();
  } while (!is_over(buffer, side) && std::chrono::steady_clock::now() < deadline);
  has_leader_ = false;
  leading_ = nullptr;
}

void Exchange::changed(Buffer* buffer) {
  buffer->changed.notify_all();
  if (buffer == leading_) doorbell_.ring();
}

void Exchange::done(Buffer* buffer, Direction direction, int peer) {
  auto& side = direction == Direction::kSend ? buffer->send : buffer->receive;
  ++side.num_done;
  side.peer = peer;
  changed(buffer);
}

void Exchange::tell(Buffer* buffer, const std::string& error) {
  if (buffer == nullptr) return;
  buffer->error = error;
  changed(buffer);
}

// --- ends ------------------------------------------------------------------------------------------------------------

bool Exchange::has_no_sender(const Posted& posted) const {
  return std::ranges::all_of(posted.from, [&](int from) { return from == rank_ || !peers_.at(from).error.empty(); });
}

// Ends the link to `rank`: every operation that needs it gets the error. A receive from several ranks survives while
// one of them is alive, and eager messages that have already arrived can still be received.
void Exchange::fail(int rank, const std::string& error) {
  auto& peer = peers_.at(rank);
  if (rank == rank_ || !peer.error.empty()) return;
  peer.error = error;
  shutdown(links_.peers[rank].socket.get(), SHUT_RDWR);  // the other side's watcher notices it
  for (const auto& message : peer.outgoing) tell(message.buffer, error);
  for (const auto& [id, message] : peer.offered) tell(message.buffer, error);
  for (const auto& [id, incoming] : peer.accepted) tell(incoming.buffer, error);
  if (peer.is_streaming) tell(peer.incoming.buffer, error);
  peer.outgoing.clear();
  peer.offered.clear();
  peer.accepted.clear();
  peer.is_streaming = false;
  std::erase_if(early_, [&](const Early& early) { return early.from == rank && early.header.kind == Kind::kOffer; });
  std::erase_if(posted_, [&](const Posted& posted) {
    if (!has_no_sender(posted)) return false;
    tell(posted.buffer, error);
    return true;
  });
}

void Exchange::fail_all(const std::string& error) {
  for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank) fail(rank, error);
}

// --- moving the bytes ------------------------------------------------------------------------------------------------

// Moves everything that can move without waiting. Returns whether anything moved.
bool Exchange::progress() {
  bool has_moved = false;
  for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank) {
    if (rank == rank_ || !peers_[rank].error.empty()) continue;
    // Read before pull(): everything that the peer wrote before it ended is in the ring and must be delivered first.
    const bool has_ended = peers_[rank].has_ended;
    has_moved |= pull(rank);
    has_moved |= push(rank);
    if (has_ended) fail(rank, closed_by(rank));
  }
  return has_moved;
}

// Writes outgoing messages in order until the ring is full. An eager message is written only if it fits completely, so
// the reader never has to keep a part of one. Published once per message or piece, then the peer is woken.
bool Exchange::push(int to) {
  auto& peer = peers_[to];
  bool has_moved = false;
  while (!peer.outgoing.empty()) {
    auto& message = peer.outgoing.front();
    const auto kind = message.header.kind;
    if (!message.is_begun) {
      const auto needed = sizeof(Header) + (kind == Kind::kEager ? message.header.num_bytes : 0);
      if (!peer.writer.has_space(needed)) break;
      peer.writer.put(&message.header, sizeof(Header));
      if (kind == Kind::kEager) peer.writer.put(message.bytes, message.header.num_bytes);
      message.is_begun = true;
    }
    if (kind == Kind::kData && message.num_sent < message.header.num_bytes) {
      if (!peer.writer.has_space(1)) break;
      const auto piece = std::min({message.header.num_bytes - message.num_sent, peer.writer.space(), kPieceBytes});
      peer.writer.put(message.bytes + message.num_sent, piece);
      message.num_sent += piece;
    }
    peer.writer.publish();
    peer.doorbell->ring();
    has_moved = true;
    if (kind == Kind::kData && message.num_sent < message.header.num_bytes) continue;
    if (kind == Kind::kEager || kind == Kind::kData) done(message.buffer, Direction::kSend, to);
    peer.outgoing.pop_front();
  }
  return has_moved;
}

// Reads incoming messages until the ring is empty, or the link fails while delivering one.
bool Exchange::pull(int from) {
  auto& peer = peers_[from];
  bool has_moved = false;
  while (peer.error.empty() && take_message(from, peer.reader.available())) {
    has_moved = true;
    if (peer.reader.publish()) peer.doorbell->ring();
  }
  return has_moved;
}

// Takes one message, or one piece of a long message, out of the ring. Returns false if none is complete.
bool Exchange::take_message(int from, std::size_t available) {
  auto& peer = peers_[from];
  if (peer.is_streaming) {
    auto& incoming = peer.incoming;
    const auto piece = std::min({available, incoming.num_left, kPieceBytes});
    if (piece == 0 && incoming.num_left > 0) return false;
    peer.reader.take(incoming.buffer != nullptr ? incoming.bytes : nullptr, piece);
    incoming.bytes += piece;
    incoming.num_left -= piece;
    if (incoming.num_left > 0) return true;
    peer.is_streaming = false;
    if (incoming.buffer != nullptr) done(incoming.buffer, Direction::kReceive, from);
    return true;
  }
  Header header;
  if (available < sizeof(header)) return false;
  peer.reader.peek(&header, sizeof(header));
  if (header.kind == Kind::kEager && available < sizeof(header) + header.num_bytes) return false;
  peer.reader.take(nullptr, sizeof(header));
  if (header.kind == Kind::kData) {
    const auto accepted = peer.accepted.extract(header.id);
    ensure(!accepted.empty(), "shared memory: rank {} sent data of an offer that was not accepted", from);
    peer.incoming = accepted.mapped();
    peer.incoming.num_left = header.num_bytes;
    peer.is_streaming = true;
    return true;
  }
  if (header.kind == Kind::kAccept) {
    auto offered = peer.offered.extract(header.id);
    ensure(!offered.empty(), "shared memory: rank {} accepted an offer that was not made", from);
    offered.mapped().header.kind = Kind::kData;
    peer.outgoing.push_back(offered.mapped());
    push(from);
    return true;
  }
  Posted posted;
  if (take_posted(from, header.slot, posted)) {
    deliver(from, header, posted);
    return true;
  }
  // No receive() yet. An eager message is copied out so that it does not block the ring; an offer waits at the sender.
  auto& early = early_.emplace_back(Early{.from = from, .header = header, .bytes = nullptr});
  if (header.kind == Kind::kOffer) return true;
  early.bytes = std::make_unique_for_overwrite<std::byte[]>(header.num_bytes);
  peer.reader.take(early.bytes.get(), header.num_bytes);
  return true;
}

// Matches an offer, or an eager message that is still in the ring, with a receive(). A message longer than the receive
// is an error of the operation here; Gloo's TCP ends the process. The words are from gloo/transport/tcp/pair.cc.
void Exchange::deliver(int from, const Header& header, const Posted& posted) {
  if (header.num_bytes > posted.num_bytes) {
    const auto error = fmt::format(
        "[enforce fail] op.preamble.length <= op.nbytes. {} vs {}. Received data size doesn't match expected size. "
        "Is there a distributed collective mismatch in your code?",
        header.num_bytes, posted.num_bytes);
    tell(posted.buffer, error);
    return fail(from, error);
  }
  if (header.kind == Kind::kOffer) return accept(from, header, posted);
  peers_[from].reader.take(posted.bytes, header.num_bytes);
  done(posted.buffer, Direction::kReceive, from);
}

void Exchange::accept(int from, const Header& header, const Posted& posted) {
  peers_[from].accepted[header.id] = {.buffer = posted.buffer, .bytes = posted.bytes, .num_left = header.num_bytes};
  send_control(from, {.kind = Kind::kAccept, .id = header.id});
}

// Inserts a control message before messages that wait for space, since otherwise two ranks that send to each other
// would wait forever for the accept behind the other's data. It stays after earlier accepts, whose order counts, and
// after a message that is partly written.
void Exchange::send_control(int to, const Header& header) {
  auto& outgoing = peers_[to].outgoing;
  const auto may_wait = [](const Outgoing& message) {
    return message.header.kind != Kind::kAccept && !message.is_begun;
  };
  outgoing.insert(std::ranges::find_if(outgoing, may_wait), Outgoing{.header = header});
  push(to);
}

bool Exchange::take_posted(int from, std::uint64_t slot, Posted& posted) {
  const auto found = std::ranges::find_if(
      posted_, [&](const Posted& each) { return each.slot == slot && std::ranges::count(each.from, from) > 0; });
  if (found == posted_.end()) return false;
  posted = std::move(*found);
  posted_.erase(found);
  return true;
}

}  // namespace accel::gloo

#include "backends/gloo/shared_memory/exchange.hpp"

#include <sys/socket.h>

#include <algorithm>

#include "reference/core/errors.hpp"

namespace accel::gloo {
namespace {

// Pieces of a long message: one is copied while the other side copies the one before.
constexpr std::size_t kPieceBytes = 128 << 10;

// Gloo's collectives have slots with a prefix in the highest byte; send() has the caller's tag. Source: gloo/types.h,
// Slot.
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
  // Gloo counts what is done with a buffer, so messages of a slot must be done in their order: none overtakes an offer.
  const bool is_behind_an_offer =
      std::ranges::any_of(peer.offered, [&](const auto& offer) { return offer.second.header.slot == slot; });
  if (num_bytes > links_.layout.capacity / 4 || is_behind_an_offer || !is_of_a_collective(slot)) {
    message.header.kind = Kind::kOffer;
    message.header.id = peer.num_offers++;
    peer.offered.emplace(message.header.id, message);
  }
  peer.outgoing.push_back(message);
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
  const auto early = std::find_if(early_.begin(), early_.end(), wanted);
  arm_watcher();
  if (early == early_.end()) {
    if (is_hopeless(posted)) throw LinkError(peers_.at(posted.from.front()).error);
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
    // What has been announced cannot be taken back: the other side would wait for the bytes.
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
  const auto deadline =
      std::chrono::steady_clock::now() + std::min<std::chrono::milliseconds>(timeout, std::chrono::hours(24 * 365));
  auto& side = direction == Direction::kSend ? buffer.send : buffer.receive;
  std::unique_lock lock(mutex_);
  while (!is_over(buffer, side) && std::chrono::steady_clock::now() < deadline) {
    if (!has_leader_) {
      lead(lock, buffer, side, deadline);
      continue;
    }
    const auto place = followers_.insert(followers_.end(), &buffer);
    buffer.changed.wait_until(lock, deadline, [&] { return is_over(buffer, side) || !has_leader_; });
    followers_.erase(place);
  }
  if (!has_leader_ && !followers_.empty()) followers_.front()->changed.notify_all();
  if (side.is_aborted) return side.is_aborted = false;  // this wait alone, as over TCP
  if (side.num_done == 0 && !buffer.error.empty()) throw LinkError(buffer.error);
  if (side.num_done == 0) {
    fail_all("Application timeout caused pair closure");
    const auto* const what = direction == Direction::kSend ? "send" : "recv";
    throw LinkError(fmt::format("Timed out waiting {}ms for {} operation to complete", timeout.count(), what));
  }
  --side.num_done;
  if (peer != nullptr) *peer = side.peer;
  return true;
}

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

bool Exchange::is_hopeless(const Posted& posted) const {
  return std::ranges::all_of(posted.from, [&](int from) { return from == rank_ || !peers_.at(from).error.empty(); });
}

void Exchange::fail(int rank, const std::string& error) {
  auto& peer = peers_.at(rank);
  if (rank == rank_ || !peer.error.empty()) return;
  peer.error = error;
  shutdown(links_.peers[rank].socket.get(), SHUT_RDWR);  // the other side sees the end
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
    if (!is_hopeless(posted)) return false;
    tell(posted.buffer, error);
    return true;
  });
}

void Exchange::fail_all(const std::string& error) {
  for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank) fail(rank, error);
}

// --- moving the bytes ------------------------------------------------------------------------------------------------

bool Exchange::progress() {
  bool has_moved = false;
  for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank) {
    if (rank == rank_ || !peers_[rank].error.empty()) continue;
    const bool has_ended = peers_[rank].has_ended;  // what it wrote before its end is there
    has_moved |= pull(rank);
    has_moved |= push(rank);
    if (has_ended) fail(rank, closed_by(rank));
  }
  return has_moved;
}

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

bool Exchange::pull(int from) {
  auto& peer = peers_[from];
  bool has_moved = false;
  while (peer.error.empty() && take_message(from, peer.reader.available())) {
    has_moved = true;
    if (peer.reader.publish()) peer.doorbell->ring();
  }
  return has_moved;
}

// A message, or a piece of a long one; false if there is none.
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
    ensure(!accepted.empty(), "rank {} sent what was not accepted", from);
    peer.incoming = accepted.mapped();
    peer.incoming.num_left = header.num_bytes;
    peer.is_streaming = true;
    return true;
  }
  if (header.kind == Kind::kAccept) {
    auto offered = peer.offered.extract(header.id);
    ensure(!offered.empty(), "rank {} accepted what was not offered", from);
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
  auto& early = early_.emplace_back(Early{.from = from, .header = header, .bytes = nullptr});
  if (header.kind == Kind::kOffer) return true;
  early.bytes = std::make_unique_for_overwrite<std::byte[]>(header.num_bytes);
  peer.reader.take(early.bytes.get(), header.num_bytes);
  return true;
}

// An offer, or an eager message at the reader. Gloo's TCP ends the process of a rank that receives more than it has
// asked for.
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

// Ahead of messages that wait for space, so that both directions of a link move; behind earlier ones of its kind, whose
// order counts.
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

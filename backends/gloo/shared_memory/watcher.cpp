// The watcher thread of an exchange. It notices when other processes end, and moves operations that nobody waits for:
// see Note [Who moves the bytes]. Without it, a rank that has posted a send and computes would block its peer.
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <csignal>

#include "backends/gloo/shared_memory/exchange.hpp"
#include "reference/core/errors.hpp"
#include "reference/core/system/resource_limits.hpp"

namespace accel::gloo {
namespace {

constexpr int kTickMs = 10;  // polling interval while operations are pending that nobody waits for
constexpr std::uint64_t kAlarm = ~0ull;

void add(int epoll, int descriptor, std::uint32_t events, std::uint64_t name) {
  epoll_event event{.events = events, .data = {.u64 = name}};
  if (epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &event) != 0) throw CommError("shared memory: epoll_ctl failed");
}

}  // namespace

Exchange::Exchange(int rank, Links links)
    : rank_(rank),
      links_(std::move(links)),
      doorbell_(*reinterpret_cast<Doorbell*>(links_.segment.data())),
      peers_(links_.peers.size()),
      alarm_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  const auto capacity = links_.layout.capacity;
  for (int peer = 0; peer < static_cast<int>(peers_.size()); ++peer) {
    if (peer == rank) continue;
    auto* const incoming = links_.segment.data() + links_.layout.ring_offset(peer);
    auto* const outgoing = links_.peers[peer].outgoing.data();
    peers_[peer].reader = RingReader(ring_state(incoming), ring_data(incoming), capacity);
    peers_[peer].writer = RingWriter(ring_state(outgoing), ring_data(outgoing), capacity);
    peers_[peer].doorbell = reinterpret_cast<Doorbell*>(links_.peers[peer].doorbell.data());
  }
  // Last: the thread uses all members.
  watcher_ = start_thread("the thread that watches shared memory", [this] { watch(); });
}

// The links close with the members, after the thread has ended: peers then see the end of this rank.
Exchange::~Exchange() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  eventfd_write(alarm_.get(), 1);
  watcher_.join();
}

// Makes the watcher poll. It disarms itself after one interval without new operations and without work, so a rank that
// only computes is not woken. The caller holds `mutex_`.
void Exchange::arm_watcher() {
  ++num_operations_;
  if (is_armed_) return;
  is_armed_ = true;
  eventfd_write(alarm_.get(), 1);
}

// Whether an operation is pending, or a message has been received only in part.
bool Exchange::has_work() const {
  if (!posted_.empty()) return true;
  for (const auto& peer : peers_) {
    if (!peer.outgoing.empty() || !peer.offered.empty() || !peer.accepted.empty() || peer.is_streaming) return true;
  }
  return false;
}

void Exchange::watch() {
  // Signals must go to the program's own threads, whose handlers may expect that.
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  const Descriptor epoll(epoll_create1(EPOLL_CLOEXEC));
  add(epoll.get(), alarm_.get(), EPOLLIN, kAlarm);
  for (std::size_t peer = 0; peer < links_.peers.size(); ++peer) {
    if (links_.peers[peer].socket.get() >= 0) add(epoll.get(), links_.peers[peer].socket.get(), EPOLLRDHUP, peer);
  }
  std::array<epoll_event, 16> events{};
  std::uint64_t num_seen = 0;
  for (bool is_armed = false;;) {
    const int num_events = epoll_wait(epoll.get(), events.data(), events.size(), is_armed ? kTickMs : -1);
    std::unique_lock lock(mutex_);
    if (is_ending_) return;
    bool has_end = false;
    for (int i = 0; i < num_events; ++i) {
      if (events[i].data.u64 == kAlarm) {
        eventfd_t value = 0;
        eventfd_read(alarm_.get(), &value);
        continue;
      }
      // A closed socket stays readable; it is removed so that epoll_wait does not return for it forever.
      epoll_ctl(epoll.get(), EPOLL_CTL_DEL, links_.peers[events[i].data.u64].socket.get(), nullptr);
      peers_[events[i].data.u64].has_ended = has_end = true;
    }
    if (has_end) doorbell_.ring();
    bool has_led = false;
    while (!has_leader_ && progress() && !is_ending_) {
      // Acts as the leader while bytes move, in slices of a millisecond. A thread that calls wait() meanwhile becomes a
      // follower, and takes over after this loop.
      has_led = has_leader_ = true;
      const auto seen = doorbell_.count();
      lock.unlock();
      doorbell_.sleep(seen, std::chrono::milliseconds(1));
      lock.lock();
      has_leader_ = false;
    }
    if (has_led && !has_leader_ && !followers_.empty()) followers_.front()->changed.notify_all();
    is_armed_ = is_armed = is_armed_ && (num_seen != num_operations_ || has_work());
    num_seen = num_operations_;
  }
}

}  // namespace accel::gloo

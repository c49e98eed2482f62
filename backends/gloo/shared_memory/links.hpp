#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "backends/gloo/shared_memory/byte_ring.hpp"

/// Memory and connections between the ranks of a group on one host.
///
///     Listener listener(size);                                    // before the others are told its address
///     auto links = connect(std::move(listener), addresses, rank, timeout);
///
/// Nothing has a name in a file system: memory is a memfd, sockets are abstract, and both end with the last process
/// that has them. Thread rule: values of one thread.
namespace accel::gloo {

// Where one thread of a process sleeps until another process has something for it.
//
//     bell.sleep_unless([&] { return has_come(); }, 1s);
//
// Thread rule: one sleeper at a time; anyone rings.

// Note [No lost wake-up]
// Who rings counts up and then looks for a sleeper; who sleeps says so and then lets the kernel compare the count with
// the one seen before it looked around. Both are sequentially consistent, so either the ringer sees the sleeper and
// wakes it, or the kernel sees another count and does not put it to sleep. What came before the ring is published by
// it.
struct Doorbell {
  alignas(64) std::atomic<std::uint32_t> rings;
  std::atomic<std::uint32_t> sleepers;

  [[nodiscard]] std::uint32_t count() const { return rings.load(std::memory_order_seq_cst); }

  /// A system call only if somebody sleeps.
  void ring();

  /// Looks, and sleeps if that gives false. Who rings while it looks is not missed.
  template <typename Look>
  void sleep_unless(Look&& look, std::chrono::nanoseconds timeout) {
    const auto seen = count();
    if (!look()) sleep(seen, timeout);
  }

  /// Returns when somebody has rung since `count()` gave `seen`, at the latest after `timeout`; perhaps before.
  void sleep(std::uint32_t seen, std::chrono::nanoseconds timeout);
};

/// A file descriptor that is closed with it.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept : number_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  [[nodiscard]] int get() const { return number_; }
  [[nodiscard]] int release();

 private:
  int number_ = -1;
};

/// A part of a memfd, mapped for as long as the value lives.
class Mapping {
 public:
  Mapping() = default;
  Mapping(const Descriptor& memory, std::size_t offset, std::size_t num_bytes);
  ~Mapping();
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  [[nodiscard]] std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t num_bytes_ = 0;
};

/// What a rank shares: its doorbell, and a ring from each rank of the group.
struct SegmentLayout {
  int num_ranks = 1;
  std::size_t capacity = 0;  ///< of a ring, in bytes
  [[nodiscard]] std::size_t ring_offset(int from) const;
  [[nodiscard]] std::size_t ring_bytes() const;
  [[nodiscard]] std::size_t num_bytes() const { return ring_offset(num_ranks); }
};

/// The layout of a group's segments: at most 16 MiB a rank, 64 KiB to 1 MiB a ring.
SegmentLayout segment_layout(int num_ranks);

struct Link {
  Descriptor socket;  ///< never carries a byte after the first: its end is the end of the other process
  Mapping doorbell;   ///< the other rank's
  Mapping outgoing;   ///< the ring to it, in its segment
};

struct Links {
  SegmentLayout layout;
  Mapping segment;          ///< this rank's
  std::vector<Link> peers;  ///< by rank; this rank's own is empty
};

/// Throws CommError where the kernel gives no memfd or abstract socket.
class Listener {
 public:
  explicit Listener(int num_ranks);
  /// The socket's name and what a caller must know to be let in, as text.
  [[nodiscard]] const std::string& address() const { return address_; }

 private:
  friend Links connect(Listener listener, const std::vector<std::string>& addresses, int rank,
                       std::chrono::milliseconds timeout);
  SegmentLayout layout_;
  Descriptor memory_;
  Mapping segment_;
  Descriptor socket_;
  std::string address_;
};

/// Joins the ranks whose listeners have these addresses. Every rank calls it. Throws CommError if one does not within
/// the timeout.
Links connect(Listener listener, const std::vector<std::string>& addresses, int rank,
              std::chrono::milliseconds timeout);

RingState& ring_state(std::byte* ring);
std::byte* ring_data(std::byte* ring);

}  // namespace accel::gloo

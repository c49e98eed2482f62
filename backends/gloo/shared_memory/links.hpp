#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "backends/gloo/shared_memory/byte_ring.hpp"

/// Shared memory and sockets between the ranks of a group on one host.
///
///     SegmentListener listener(size);                                    // before its address is published
///     auto links = connect(std::move(listener), addresses, rank, timeout);
///
/// Nothing has a name in a file system: the memory is a memfd and the sockets are abstract, so the kernel frees both
/// when the last process that holds them ends. Thread rule: each value is used by one thread at a time.
namespace accel::gloo {

// A futex on which one thread of a process sleeps until another process has a message for it.
//
//     bell.sleep_unless([&] { return has_come(); }, 1s);
//
// Thread rule: one sleeper at a time; any thread of any process may ring.

// Note [No lost wake-up]
// ring() increments `rings` and then loads `sleepers`. sleep() increments `sleepers` and then lets the kernel compare
// `rings` with the value loaded before the sleeper checked for work. All are sequentially consistent, so either the
// ringer sees the sleeper and wakes it, or the kernel sees another count and does not put it to sleep. The increment
// also publishes everything that the ringer wrote before it.
struct Doorbell {
  alignas(64) std::atomic<std::uint32_t> rings;
  std::atomic<std::uint32_t> sleepers;

  [[nodiscard]] std::uint32_t count() const { return rings.load(std::memory_order_seq_cst); }

  /// Wakes the sleeper, if any. Makes a system call only if there is one.
  void ring();

  /// Calls `look` and sleeps if it returns false. A ring during `look` is not missed.
  template <typename Look>
  void sleep_unless(Look&& look, std::chrono::nanoseconds timeout) {
    const auto seen = count();
    if (!look()) sleep(seen, timeout);
  }

  /// Sleeps until the next ring() after `count()` returned `seen`, at most for `timeout`. May return earlier.
  void sleep(std::uint32_t seen, std::chrono::nanoseconds timeout);
};

/// Owns a file descriptor.
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

/// Maps a part of a memfd for the lifetime of the value.
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

/// The layout of the memory that a rank shares: its doorbell, and a ring from each rank of the group.
struct SegmentLayout {
  int num_ranks = 1;
  std::size_t capacity = 0;  ///< of a ring, in bytes
  [[nodiscard]] std::size_t ring_offset(int from) const;
  [[nodiscard]] std::size_t ring_bytes() const;
  [[nodiscard]] std::size_t num_bytes() const { return ring_offset(num_ranks); }
};

/// Chooses the layout for a group: at most about 16 MiB per rank, with rings of 64 KiB to 1 MiB.
SegmentLayout segment_layout(int num_ranks);

struct SegmentLink {
  Descriptor socket;  ///< idle after the handshake; it closes when the other process ends
  Mapping doorbell;   ///< of the other rank
  Mapping outgoing;   ///< the ring to the other rank, in that rank's segment
};

struct Links {
  SegmentLayout layout;
  Mapping segment;                 ///< of this rank
  std::vector<SegmentLink> peers;  ///< by rank; the entry of this rank is empty
};

/// This rank's memory and listening socket. The constructor throws CommError if the kernel refuses a memfd or an
/// abstract socket.
class SegmentListener {
 public:
  explicit SegmentListener(int num_ranks);
  /// The socket's name, and the token that a caller must present, as text.
  [[nodiscard]] const std::string& address() const { return address_; }

 private:
  friend Links connect(SegmentListener listener, const std::vector<std::string>& addresses, int rank,
                       std::chrono::milliseconds timeout);
  SegmentLayout layout_;
  Descriptor memory_;
  Mapping segment_;
  Descriptor socket_;
  std::string address_;
};

/// Connects the ranks whose listeners have these addresses. Collective. Throws CommError if a rank does not connect
/// within the timeout.
Links connect(SegmentListener listener, const std::vector<std::string>& addresses, int rank,
              std::chrono::milliseconds timeout);

RingState& ring_state(std::byte* ring);
std::byte* ring_data(std::byte* ring);

}  // namespace accel::gloo

#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

/// A byte stream from one process to another through memory that both have mapped.
///
///     RingWriter writer(state, data, capacity);             RingReader reader(state, data, capacity);
///     if (writer.has_space(n)) writer.put(bytes, n);        if (reader.available() >= n) reader.take(bytes, n);
///     writer.publish();                                     if (reader.publish()) wake_the_writer();
///
/// Thread rule: one writer and one reader. Each process serializes the use of its own side.
namespace accel::gloo {

// Note [Memory order of a ring]
// `written` and `read` count bytes since the start. Only the writer stores the first, only the reader the second. A
// store releases the copies before it, and the other side's load acquires it: a side that sees a count may read the
// bytes before it, or overwrite them. The counts never wrap in 64 bits, so an empty ring (equal counts) and a full one
// (counts that differ by the capacity) are distinct. Lock-free atomics do not depend on addresses, so they work between
// processes that map the page at different addresses.
//
// A writer without space sets `writer_waits` and loads `read` once more; a reader stores `read` and then loads
// `writer_waits`. All four operations are sequentially consistent, so at least one side sees the other, and no writer
// sleeps while there is free space.
struct RingState {
  alignas(64) std::atomic<std::uint64_t> written;
  alignas(64) std::atomic<std::uint64_t> read;
  alignas(64) std::atomic<std::uint32_t> writer_waits;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);

class RingWriter {
 public:
  RingWriter() = default;
  RingWriter(RingState& state, std::byte* data, std::size_t capacity)
      : state_(&state), data_(data), capacity_(capacity) {}

  /// Number of bytes that fit now.
  [[nodiscard]] std::size_t space() {
    read_ = state_->read.load(std::memory_order_acquire);
    return capacity_ - static_cast<std::size_t>(written_ - read_);
  }

  /// Whether `num_bytes` fit. If not, the reader's next publish() returns true, and the reader must wake this side.
  [[nodiscard]] bool has_space(std::size_t num_bytes) {
    if (capacity_ - static_cast<std::size_t>(written_ - read_) >= num_bytes || space() >= num_bytes) return true;
    state_->writer_waits.store(1, std::memory_order_seq_cst);
    read_ = state_->read.load(std::memory_order_seq_cst);
    return capacity_ - static_cast<std::size_t>(written_ - read_) >= num_bytes;
  }

  /// Copies bytes for which there is space. The reader does not see them yet.
  void put(const void* bytes, std::size_t num_bytes) {
    const auto at = static_cast<std::size_t>(written_ % capacity_);
    const auto until_end = std::min(num_bytes, capacity_ - at);
    if (num_bytes == 0) return;
    std::memcpy(data_ + at, bytes, until_end);
    std::memcpy(data_, static_cast<const std::byte*>(bytes) + until_end, num_bytes - until_end);
    written_ += num_bytes;
  }

  void publish() { state_->written.store(written_, std::memory_order_release); }

 private:
  RingState* state_ = nullptr;
  std::byte* data_ = nullptr;
  std::size_t capacity_ = 0;
  std::uint64_t written_ = 0;
  std::uint64_t read_ = 0;  // the reader's count as last loaded
};

class RingReader {
 public:
  RingReader() = default;
  RingReader(RingState& state, const std::byte* data, std::size_t capacity)
      : state_(&state), data_(data), capacity_(capacity) {}

  /// Number of bytes that can be taken now.
  [[nodiscard]] std::size_t available() const {
    return static_cast<std::size_t>(state_->written.load(std::memory_order_acquire) - read_);
  }

  void peek(void* bytes, std::size_t num_bytes) const {
    const auto at = static_cast<std::size_t>(read_ % capacity_);
    const auto until_end = std::min(num_bytes, capacity_ - at);
    std::memcpy(bytes, data_ + at, until_end);
    std::memcpy(static_cast<std::byte*>(bytes) + until_end, data_, num_bytes - until_end);
  }

  /// Copies available bytes to `bytes`, or drops them if it is null. Their space is not free until publish().
  void take(void* bytes, std::size_t num_bytes) {
    if (bytes != nullptr && num_bytes > 0) peek(bytes, num_bytes);
    read_ += num_bytes;
  }

  /// Frees the space of the taken bytes. Returns true if the writer waits for space and must be woken.
  [[nodiscard]] bool publish() {
    state_->read.store(read_, std::memory_order_seq_cst);
    return state_->writer_waits.load(std::memory_order_seq_cst) != 0 &&
           state_->writer_waits.exchange(0, std::memory_order_seq_cst) != 0;
  }

 private:
  RingState* state_ = nullptr;
  const std::byte* data_ = nullptr;
  std::size_t capacity_ = 0;
  std::uint64_t read_ = 0;
};

}  // namespace accel::gloo

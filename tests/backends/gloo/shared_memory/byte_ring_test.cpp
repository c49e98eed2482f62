// Tests of the ring buffer in shared memory and of the bell that wakes its reader: bytes come out in the order in
// which they went in, and no wake-up is lost. The two ends run on two threads, so that the thread sanitizer can
// judge them.
#include "backends/gloo/shared_memory/byte_ring.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <deque>
#include <thread>

#include "backends/gloo/shared_memory/links.hpp"
#include "tests/support/property.hpp"

namespace accel::testing {
namespace {

using namespace gloo;

// A ring of few bytes, so that it wraps often.
struct SmallRing {
  explicit SmallRing(std::size_t capacity)
      : bytes(capacity), writer(state, bytes.data(), capacity), reader(state, bytes.data(), capacity) {}
  RingState state{};
  std::vector<std::byte> bytes;
  RingWriter writer;
  RingReader reader;
};

// Bytes that look random but follow from their place, so that any loss or exchange shows.
std::byte byte_number(std::size_t index) { return static_cast<std::byte>((index * 2654435761u) >> 13); }

// Random pieces, put and taken in random order, against a model that only counts.
TEST(ByteRingTest, ReturnsTheBytesInOrderWhereverItWraps) {
  expect_property(200, [] {
    const auto capacity = pick<std::size_t>(1, 40);
    SmallRing ring(capacity);
    std::size_t num_put = 0, num_taken = 0;
    for (int step = 0; step < 200; ++step) {
      const auto held = num_put - num_taken;
      RC_ASSERT(ring.writer.space() == capacity - held);
      RC_ASSERT(ring.reader.available() == held);
      // Also nothing, and more than fits.
      const auto size = pick<std::size_t>(0, capacity + 2);
      std::vector<std::byte> piece(size);
      if (pick(0, 2) == 0) {
        RC_ASSERT(ring.writer.has_space(size) == (size <= capacity - held));
        if (size > capacity - held) continue;
        for (auto& byte : piece) byte = byte_number(num_put++);
        ring.writer.put(piece.data(), size);
        RC_ASSERT(ring.reader.available() == held);  // not yet published
        ring.writer.publish();
      } else if (size <= held) {
        ring.reader.take(piece.data(), size);
        for (const auto byte : piece) RC_ASSERT(byte == byte_number(num_taken++));
        (void)ring.reader.publish();
      }
    }
  });
}

// publish() returns whether the writer waits, so that its bell rings only when needed.
TEST(ByteRingTest, AWaitingWriterIsWokenOnceThereIsSpace) {
  SmallRing ring(4);
  const std::uint32_t word = 7;
  ring.writer.put(&word, 4);
  ring.writer.publish();
  EXPECT_FALSE(ring.writer.has_space(1));
  // Taking without a destination skips bytes.
  ring.reader.take(nullptr, 2);
  EXPECT_TRUE(ring.reader.publish());
  ring.reader.take(nullptr, 1);
  EXPECT_FALSE(ring.reader.publish());  // no writer waits any more
  EXPECT_TRUE(ring.writer.has_space(3));
}

// Without the bell, since its own synchronisation would hide errors of the ring from the thread sanitizer.
TEST(ByteRingTest, OrdersMemoryAccessesWithoutTheBell) {
  constexpr std::size_t kStream = 1 << 14;
  SmallRing ring(64);
  std::thread writing([&] {
    for (std::size_t done = 0; done < kStream;) {
      // Busy waiting: only the ring itself synchronises the threads.
      if (ring.writer.space() == 0) {
        std::this_thread::yield();
        continue;
      }
      const auto byte = byte_number(done++);
      ring.writer.put(&byte, 1);
      ring.writer.publish();
    }
  });
  int num_wrong = 0;
  for (std::size_t done = 0; done < kStream;) {
    if (ring.reader.available() == 0) {
      std::this_thread::yield();
      continue;
    }
    std::byte byte{};
    ring.reader.take(&byte, 1);
    num_wrong += byte != byte_number(done++);
    (void)ring.reader.publish();
  }
  writing.join();
  EXPECT_EQ(num_wrong, 0);
}

// The classic lost wake-up: the reader has seen an empty ring, and the bell rings before it sleeps.
TEST(DoorbellTest, ARingBetweenCountAndSleepIsNotMissed) {
  constexpr auto kLong = std::chrono::seconds(20);
  Doorbell bell{};
  const auto seen = bell.count();
  bell.ring();
  const auto start = std::chrono::steady_clock::now();
  bell.sleep(seen, kLong);
  EXPECT_LT(std::chrono::steady_clock::now() - start, kLong);
}

// The bell rings while the condition is checked, which still finds nothing.
TEST(DoorbellTest, ARingDuringTheCheckIsNotMissed) {
  constexpr auto kLong = std::chrono::seconds(20);
  Doorbell bell{};
  const auto start = std::chrono::steady_clock::now();
  bell.sleep_unless(
      [&] {
        bell.ring();
        return false;
      },
      kLong);
  EXPECT_LT(std::chrono::steady_clock::now() - start, kLong);
}

// Every wait is for a ring of the bell. If one is lost, the wait lasts the full timeout of 20 seconds and is
// counted.
TEST(ByteRingTest, ALongStreamThroughASmallRingLosesNoWakeUp) {
  constexpr std::size_t kCapacity = 64, kStream = 1 << 18;
  constexpr auto kLong = std::chrono::seconds(20);
  SmallRing ring(kCapacity);
  Doorbell for_reader{}, for_writer{};
  int num_late = 0, num_wrong = 0;
  const auto sleep_on = [&](Doorbell& bell, std::uint32_t seen) {
    const auto start = std::chrono::steady_clock::now();
    bell.sleep(seen, kLong);
    if (std::chrono::steady_clock::now() - start >= kLong) ++num_late;
  };
  std::thread writing([&] {
    for (std::size_t done = 0; done < kStream && num_late == 0;) {
      // Pieces of changing sizes. 61 and 37 are primes, so writer and reader drift against each other.
      const auto size = std::min<std::size_t>(1 + done % 61, kStream - done);
      const auto seen = for_writer.count();
      if (!ring.writer.has_space(size)) {
        sleep_on(for_writer, seen);
        continue;
      }
      std::byte piece[kCapacity];
      for (std::size_t i = 0; i < size; ++i) piece[i] = byte_number(done + i);
      ring.writer.put(piece, size);
      ring.writer.publish();
      for_reader.ring();
      done += size;
    }
  });
  int num_late_reads = 0;
  for (std::size_t done = 0; done < kStream && num_late_reads == 0;) {
    // The count is taken before looking, so a ring in between is not lost.
    const auto seen = for_reader.count();
    const auto size = std::min<std::size_t>(ring.reader.available(), 1 + done % 37);
    if (size == 0) {
      const auto start = std::chrono::steady_clock::now();
      for_reader.sleep(seen, kLong);
      if (std::chrono::steady_clock::now() - start >= kLong) ++num_late_reads;
      continue;
    }
    std::byte piece[kCapacity];
    ring.reader.take(piece, size);
    for (std::size_t i = 0; i < size; ++i) num_wrong += piece[i] != byte_number(done + i);
    // The writer is only woken if it waits.
    if (ring.reader.publish()) for_writer.ring();
    done += size;
  }
  writing.join();
  EXPECT_EQ(num_late, 0);
  EXPECT_EQ(num_late_reads, 0);
  EXPECT_EQ(num_wrong, 0);
}

}  // namespace
}  // namespace accel::testing

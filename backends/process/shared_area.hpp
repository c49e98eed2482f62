#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

/// The memory that a simulator and the processes of its ranks share: one channel and one payload per rank.
///
///     const auto area = SharedArea::create(/*num_ranks=*/64);   // the simulator
///     const auto area = SharedArea::attach(descriptor);         // a rank, which inherited the descriptor
///
/// An anonymous file in memory: nothing is left behind when the last process that maps it ends, however it ends.
/// Thread rule: any thread.
namespace accel::process {

/// How the process of a rank has ended.
struct RankEnd {
  std::atomic<std::uint32_t> has_ended;
  std::atomic<std::int32_t> status;  // of wait()
  std::atomic<pid_t> pid;            // 0: not started
};

/// Which thread of a rank's process sends a request.
struct Sender {
  std::uint32_t reply = 0;        ///< where it waits for the answer, if there is one
  std::int32_t thread = 0;        ///< its number in the system
  std::uint32_t num_threads = 1;  ///< of the program: those that may send requests
};

/// One rank's requests to its proxy, in order, and the proxy's answers to the threads that asked for one. Zero at
/// first.
///
/// Futexes: the proxy waits on `wakeups`, the rank on `taken` and the `answered` of its threads.
struct Channel {
  static constexpr std::uint32_t kEntries = 64;
  static constexpr std::uint32_t kReplies = 64;  // threads of a rank that can wait at a time
  static constexpr std::size_t kTextBytes = 64 << 10;

  struct Entry {
    std::uint64_t offset, bytes;  // in the rank's payload
    Sender sender;
  };
  struct Reply {
    std::atomic<std::uint32_t> answered;  // answers written
    std::uint32_t has_failed;
    std::int64_t value;
    std::uint64_t text_bytes;
    char text[kTextBytes];
  };
  std::atomic<std::uint32_t> wakeups;  // rises when there is something to see
  std::atomic<std::uint32_t> posted;   // requests written
  std::atomic<std::uint32_t> taken;    // requests read
  RankEnd end;
  Entry entries[kEntries];
  Reply replies[kReplies];
};

/// Wakes whoever waits for the channel's rank, its requests or its end.
void wake_proxy(Channel& channel);

class SharedArea {
 public:
  static constexpr int kMaxRanks = 1024;
  static constexpr std::uint64_t kPayloadBytes = 1ull << 34;  // of addresses, per rank; memory is used by the page

  /// Throws ConfigError if the number of ranks is not in 1..kMaxRanks, or the kernel refuses the memory.
  static std::shared_ptr<SharedArea> create(int num_ranks);
  /// Throws ConfigError if the descriptor is not an area of this version.
  static std::shared_ptr<SharedArea> attach(int descriptor);
  ~SharedArea();
  SharedArea(const SharedArea&) = delete;
  SharedArea& operator=(const SharedArea&) = delete;

  /// Of the file, which is closed on exec.
  [[nodiscard]] int descriptor() const { return descriptor_; }
  [[nodiscard]] int num_ranks() const;
  [[nodiscard]] Channel& channel(int rank) const;
  [[nodiscard]] std::byte* payload(int rank) const;
  /// The simulator's process, if the ranks must notice its end; else 0: they end with it.
  [[nodiscard]] std::atomic<pid_t>& simulator() const;
  /// Not 0 once the ranks are about to start; a futex.
  [[nodiscard]] std::atomic<std::uint32_t>& ready() const;

  /// Records that a rank's process has ended, with the status of wait(), and wakes its proxy.
  void record_end(int rank, int status) const;
  /// The same for every rank that has no end yet: whoever started them is gone.
  void record_lost_ends(int status) const;

 private:
  SharedArea(int descriptor, int num_ranks);
  struct Header;
  [[nodiscard]] Header& header() const;

  int descriptor_;
  std::size_t bytes_;
  std::byte* begin_;
};

}  // namespace accel::process

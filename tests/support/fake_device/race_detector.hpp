#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

/// Finds accesses to memory of a device that nothing orders: a missing event, wait or record_stream.
///
/// Work on a stream is ordered after earlier work of that stream, after the events that the stream waited for, and
/// after everything that the thread that starts it has waited for. Each stream counts its work; a clock holds, for
/// every stream, how much of its work is known to be done. An access conflicts with an earlier one of the same bytes by
/// another stream, at least one of them a write, if the later stream's clock does not contain the earlier access.
/// Thread rule: any thread.
namespace accel::testing::fake_device {

struct StreamKey {
  int device = 0;
  std::int64_t stream = 0;
  auto operator<=>(const StreamKey&) const = default;
};

/// Work known to be done: the number of the last operation of each stream.
using Clock = std::map<StreamKey, std::uint64_t>;

class RaceDetector {
 public:
  /// Begins an operation on a stream, started by this thread.
  void launch(StreamKey stream);
  /// The running operation of `stream` accesses bytes. `place` names it in reports.
  void read(StreamKey stream, const void* begin, std::size_t bytes, const std::string& place);
  void write(StreamKey stream, const void* begin, std::size_t bytes, const std::string& place);

  /// What is done once the stream has done what it has been given until now: an event.
  [[nodiscard]] Clock snapshot(StreamKey stream);
  /// Later work of the stream begins after what the event contains.
  void wait(StreamKey stream, const Clock& event);
  /// This thread waits for what the event contains.
  void host_wait(const Clock& event);
  [[nodiscard]] bool host_knows(const Clock& event);

  /// Adds a report of an error that the detector cannot see.
  void report(std::string race);
  /// Memory that is given out again without any connection to its earlier use.
  void forget(const void* begin, std::size_t bytes);

  /// Two lines per race, at most 20 races: what conflicts with what.
  [[nodiscard]] std::vector<std::string> races();
  void clear();

 private:
  struct Access {
    std::uintptr_t begin = 0, end = 0;
    StreamKey stream;
    std::uint64_t time = 0;
    bool is_write = false;
    std::string place;
  };

  void add(std::string race);
  void access(StreamKey stream, const void* begin, std::size_t bytes, bool is_write, const std::string& place);
  [[nodiscard]] static bool contains(const Clock& clock, const Access& access);

  std::mutex mutex_;
  std::map<StreamKey, Clock> clocks_;
  std::multimap<std::uintptr_t, Access> accesses_;  // by their begin
  std::size_t longest_ = 0;                         // bytes of the longest access
  std::vector<std::string> races_;
};

/// The detector of this process.
RaceDetector& races();

}  // namespace accel::testing::fake_device

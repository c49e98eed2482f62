#include "tests/support/fake_device/race_detector.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace accel::testing::fake_device {
namespace {

// What this thread has waited for.
thread_local Clock host_clock;

void merge(Clock& into, const Clock& from) {
  for (const auto& [stream, time] : from) into[stream] = std::max(into[stream], time);
}

std::string name_of(StreamKey stream) { return fmt::format("device {} stream {}", stream.device, stream.stream); }

}  // namespace

RaceDetector& races() {
  static RaceDetector detector;
  return detector;
}

bool RaceDetector::contains(const Clock& clock, const Access& access) {
  const auto known = clock.find(access.stream);
  return known != clock.end() && known->second >= access.time;
}

void RaceDetector::launch(StreamKey stream) {
  const std::lock_guard lock(mutex_);
  auto& clock = clocks_[stream];
  merge(clock, host_clock);
  ++clock[stream];
}

void RaceDetector::read(StreamKey stream, const void* begin, std::size_t bytes, const std::string& place) {
  access(stream, begin, bytes, /*is_write=*/false, place);
}

void RaceDetector::write(StreamKey stream, const void* begin, std::size_t bytes, const std::string& place) {
  access(stream, begin, bytes, /*is_write=*/true, place);
}

// Earlier accesses that a write contains and that are ordered before it need not be kept: what is ordered after the
// write is ordered after them.
void RaceDetector::access(StreamKey stream, const void* begin, std::size_t bytes, bool is_write,
                          const std::string& place) {
  if (bytes == 0) return;
  const std::lock_guard lock(mutex_);
  const auto& clock = clocks_[stream];
  const auto from = reinterpret_cast<std::uintptr_t>(begin), to = from + bytes;
  const auto first = accesses_.lower_bound(from > longest_ ? from - longest_ : 0);
  for (auto entry = first; entry != accesses_.end() && entry->first < to;) {
    const auto& earlier = entry->second;
    const bool overlaps = earlier.end > from;
    const bool is_ordered = earlier.stream == stream || contains(clock, earlier);
    if (overlaps && (is_write || earlier.is_write) && !is_ordered) {
      add(fmt::format("{} {} on {} is not ordered after\n{} {} on {}", place, is_write ? "writes" : "reads",
                      name_of(stream), earlier.place, earlier.is_write ? "writes" : "reads", name_of(earlier.stream)));
    }
    const bool is_covered = earlier.begin >= from && earlier.end <= to && is_ordered;
    const bool is_replaced = is_covered && (is_write || (!earlier.is_write && earlier.stream == stream));
    entry = is_replaced ? accesses_.erase(entry) : std::next(entry);
  }
  longest_ = std::max(longest_, bytes);
  accesses_.emplace(from, Access{.begin = from,
                                 .end = to,
                                 .stream = stream,
                                 .time = clock.contains(stream) ? clock.at(stream) : 0,
                                 .is_write = is_write,
                                 .place = place});
}

Clock RaceDetector::snapshot(StreamKey stream) {
  const std::lock_guard lock(mutex_);
  return clocks_[stream];
}

void RaceDetector::wait(StreamKey stream, const Clock& event) {
  const std::lock_guard lock(mutex_);
  merge(clocks_[stream], event);
}

void RaceDetector::host_wait(const Clock& event) { merge(host_clock, event); }

bool RaceDetector::host_knows(const Clock& event) {
  return std::all_of(event.begin(), event.end(), [](const auto& entry) {
    const auto known = host_clock.find(entry.first);
    return known != host_clock.end() && known->second >= entry.second;
  });
}

void RaceDetector::report(std::string race) {
  const std::lock_guard lock(mutex_);
  add(std::move(race));
}

void RaceDetector::add(std::string race) {
  if (races_.size() < 20) races_.push_back(std::move(race));
}

void RaceDetector::forget(const void* begin, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto from = reinterpret_cast<std::uintptr_t>(begin);
  accesses_.erase(accesses_.lower_bound(from), accesses_.lower_bound(from + bytes));
}

std::vector<std::string> RaceDetector::races() {
  const std::lock_guard lock(mutex_);
  return races_;
}

void RaceDetector::clear() {
  const std::lock_guard lock(mutex_);
  accesses_.clear();
  races_.clear();
  longest_ = 0;
}

}  // namespace accel::testing::fake_device

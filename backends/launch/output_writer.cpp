// A thread, because a write cannot be made non-blocking without side effects: O_NONBLOCK belongs to the open file,
// which the shell and other processes share, and a terminal or a pipe that poll() reports as writable may still block.
#include "backends/launch/output_writer.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <iostream>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "reference/core/system/resource_limits.hpp"

namespace accel::launcher {
namespace {

constexpr std::size_t kQueueBytesMax = 256 << 10;
constexpr std::size_t kWriteBytesMax = 16 << 10;  // per call, so that the progress of a slow reader is seen
constexpr FlushLimits kLimitsOfLastLine{.idle = std::chrono::seconds(2), .total = std::chrono::seconds(2)};

bool is_same_file(int a, int b) {
  struct stat first {
  }, second{};
  return fstat(a, &first) == 0 && fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

}  // namespace

struct OutputWriter::Queue {
  explicit Queue(int descriptor)
      : descriptor(descriptor),
        room(checked_descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "the output of the launcher")) {}
  ~Queue() { close(room); }
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  const int descriptor, room;
  std::mutex mutex;
  std::condition_variable changed;
  std::string waiting;             // under mutex; not yet passed to write()
  std::size_t unwritten = 0;       // under mutex; bytes of `waiting` and of the write in progress
  std::uint64_t num_progress = 0;  // under mutex; writes that have returned
  bool is_over = false;            // under mutex
};

OutputWriter::OutputWriter(int descriptor) : queue_(std::make_shared<Queue>(descriptor)) {
  start_thread("the thread that writes output", [queue = queue_] { write_all(*queue); }).detach();
}

OutputWriter::~OutputWriter() {
  const std::lock_guard lock(queue_->mutex);
  queue_->is_over = true;
  queue_->changed.notify_all();
}

void OutputWriter::write(std::string_view text) {
  const std::lock_guard lock(queue_->mutex);
  queue_->waiting += text;
  queue_->unwritten += text.size();
  queue_->changed.notify_all();
}

bool OutputWriter::is_full() const {
  const std::lock_guard lock(queue_->mutex);
  return queue_->unwritten >= kQueueBytesMax;
}

bool OutputWriter::is_empty() const {
  const std::lock_guard lock(queue_->mutex);
  return queue_->unwritten == 0;
}

// The order avoids a lost wake-up: room that appears after the read is seen either here or by poll().
void OutputWriter::add_to(std::vector<pollfd>& waiting) const {
  std::uint64_t count = 0;
  (void)!read(queue_->room, &count, sizeof(count));
  if (is_full()) waiting.push_back({queue_->room, POLLIN, 0});
}

bool OutputWriter::flush(const FlushLimits& limits) {
  const auto end = std::chrono::steady_clock::now() + limits.total;
  std::unique_lock lock(queue_->mutex);
  while (queue_->unwritten > 0) {
    const auto before = queue_->num_progress;
    const auto until = std::min(end, std::chrono::steady_clock::now() + limits.idle);
    if (!queue_->changed.wait_until(lock, until, [&] { return queue_->num_progress != before; })) return false;
  }
  return true;
}

// The body of the thread. After an error, such as a reader that has closed its end while SIGPIPE is ignored, the text
// is discarded, as std::cout does.
void OutputWriter::write_all(Queue& queue) {
  bool has_failed = false;
  std::unique_lock lock(queue.mutex);
  while (true) {
    queue.changed.wait(lock, [&] { return queue.is_over || !queue.waiting.empty(); });
    if (queue.is_over) return;
    const auto text = std::exchange(queue.waiting, {});
    for (std::size_t begin = 0; begin < text.size() && !queue.is_over;) {
      lock.unlock();
      const auto size = std::min(kWriteBytesMax, text.size() - begin);
      auto count = has_failed ? static_cast<ssize_t>(size) : ::write(queue.descriptor, text.data() + begin, size);
      if (count < 0 && errno == EAGAIN) {  // another process has made the shared file non-blocking
        pollfd writable{queue.descriptor, POLLOUT, 0};
        poll(&writable, 1, /*timeout_ms=*/1000);
        count = 0;
      } else if (count < 0 && errno == EINTR) {
        count = 0;
      }
      has_failed = has_failed || count < 0;
      lock.lock();
      if (count <= 0) continue;
      const bool was_full = queue.unwritten >= kQueueBytesMax;
      begin += static_cast<std::size_t>(count);
      queue.unwritten -= static_cast<std::size_t>(count);
      ++queue.num_progress;
      queue.changed.notify_all();
      const std::uint64_t one = 1;
      if (was_full && queue.unwritten < kQueueBytesMax) (void)!::write(queue.room, &one, sizeof(one));
    }
  }
}

// What this process has printed itself comes first.
LaunchOutput::LaunchOutput() : output_((std::cout.flush(), STDOUT_FILENO)) {
  if (!is_same_file(STDOUT_FILENO, STDERR_FILENO)) error_ = std::make_unique<OutputWriter>(STDERR_FILENO);
}

bool LaunchOutput::flush(const FlushLimits& limits) {
  const bool is_written = standard_error().flush(limits);
  return output_.flush(limits) && is_written;
}

void LaunchOutput::add_to(std::vector<pollfd>& waiting) const {
  output_.add_to(waiting);
  if (error_) error_->add_to(waiting);
}

void print_last_line(std::string_view line) {
  OutputWriter error(STDERR_FILENO);
  error.write(std::string(line) + '\n');
  error.flush(kLimitsOfLastLine);
}

}  // namespace accel::launcher

// Pipes instead of inherited descriptors, because only the launcher can keep lines of several ranks apart, and it needs
// the last line of standard error for its message.
#include "backends/launch/output_lines.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "reference/core/errors.hpp"

namespace accel::launcher {
namespace {

constexpr std::size_t kBytesPerRound = 64 << 10, kPipeBytesMax = 1 << 20;  // Linux's limit of a pipe for users
constexpr std::size_t kLineBytesMax = 64 << 10, kLastLineBytesMax = 4 << 10;

}  // namespace

OutputLines::OutputLines(OutputLinesOptions options) : options_(std::move(options)), log_(nullptr, &std::fclose) {
  // Only this end of the pipe: the rank's own end must stay blocking, or its prints could fail with EAGAIN.
  fcntl(options_.descriptor, F_SETFL, O_NONBLOCK);
  if (options_.log_file.empty()) return;
  log_.reset(std::fopen(options_.log_file.c_str(), "ae"));
  if (log_) return;
  close(std::exchange(options_.descriptor, -1));
  throw ConfigError(fmt::format("--log_dir: {}: {}", options_.log_file, std::strerror(errno)));
}

OutputLines::~OutputLines() {
  if (!pending_.empty()) take("\n");  // the last line of a stream that another process still holds open
  if (options_.descriptor >= 0) close(options_.descriptor);
}

OutputLines::OutputLines(OutputLines&& other) noexcept
    : options_(std::move(other.options_)),
      log_(std::move(other.log_)),
      pending_(std::move(other.pending_)),
      last_line_(std::move(other.last_line_)) {
  other.options_.descriptor = -1;
  other.pending_.clear();
}

void OutputLines::forward() {
  if (!must_wait()) read_up_to(kBytesPerRound);
}

// Other processes may hold the pipe open and continue to write, hence the bound.
void OutputLines::drain() { read_up_to(kPipeBytesMax); }

void OutputLines::read_up_to(std::size_t num_bytes) {
  std::array<char, 1 << 14> buffer{};
  for (std::size_t num_read = 0; options_.descriptor >= 0 && num_read < num_bytes;) {
    const auto count = read(options_.descriptor, buffer.data(), buffer.size());
    if (count < 0) return;  // no more data now
    take({buffer.data(), static_cast<std::size_t>(count)});
    num_read += static_cast<std::size_t>(count);
    if (count > 0) continue;
    if (!pending_.empty()) take("\n");
    close(std::exchange(options_.descriptor, -1));
  }
}

void OutputLines::take(std::string_view text) {
  for (std::size_t end; (end = text.find('\n')) != std::string_view::npos; text.remove_prefix(end + 1)) {
    pending_ += text.substr(0, end);
    forward_line(pending_);
    pending_.clear();
  }
  pending_ += text;
  if (pending_.size() < kLineBytesMax) return;
  forward_line(pending_);
  pending_.clear();
}

void OutputLines::forward_line(std::string_view line) {
  options_.out->write(fmt::format("{}{}\n", options_.prefix, line));
  // Flushed line by line: the launcher may be killed at any time, and the last lines matter most.
  if (log_) {
    std::fwrite(line.data(), 1, line.size(), log_.get());
    std::fputc('\n', log_.get());
    std::fflush(log_.get());
  }
  // LibTorch's stack frames follow its message.
  if (!line.empty() && !line.starts_with("frame #") && !line.starts_with("Exception raised from "))
    last_line_ = line.substr(0, kLastLineBytesMax);
}

}  // namespace accel::launcher

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
  if (options_.descriptor < 0) return;
  std::array<char, 1 << 14> buffer{};
  ssize_t count = 0;
  while ((count = read(options_.descriptor, buffer.data(), buffer.size())) > 0)
    take({buffer.data(), static_cast<std::size_t>(count)});
  // 0 is the end of the stream, -1 means that there is no more data now.
  if (count != 0) return;
  if (!pending_.empty()) take("\n");
  close(std::exchange(options_.descriptor, -1));
}

void OutputLines::take(std::string_view text) {
  pending_ += text;
  for (std::size_t end; (end = pending_.find('\n')) != std::string::npos;) {
    auto line = pending_.substr(0, end);
    pending_.erase(0, end + 1);
    // Flushed line by line: the launcher may be killed at any time, and the last lines matter most.
    *options_.out << options_.prefix << line << std::endl;
    if (log_) {
      std::fputs((line + '\n').c_str(), log_.get());
      std::fflush(log_.get());
    }
    if (!line.empty()) last_line_ = std::move(line);
  }
}

}  // namespace accel::launcher

#include "reference/terminal/log_lines.hpp"

#include <spdlog/logger.h>
#include <spdlog/sinks/base_sink.h>

#include <string_view>

#include "reference/terminal/terminal.hpp"

namespace accel::terminal {
namespace {

// Sends lines to the Terminal, which knows the bars below them. No mutex of its own: the Terminal locks.
class TerminalSink final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    std::string_view text(line.data(), line.size());
    while (!text.empty() && text.back() == '\n') text.remove_suffix(1);
    Terminal::standard_error().write_line(text);
  }
  void flush_() override {}
};

// spdlog has a level "trace" below "debug"; the levels here start at debug.
spdlog::level::level_enum level_of(int level) {
  return static_cast<spdlog::level::level_enum>(level + spdlog::level::debug);
}

}  // namespace

struct LogLines::Sink {
  explicit Sink(const std::string& name) : logger(name, std::make_shared<TerminalSink>()) {}
  spdlog::logger logger;
};

LogLines::LogLines(const std::string& name, int level) : sink_(std::make_unique<Sink>(name)) {
  // The format of Python's logging: "%(asctime)s - %(levelname)s - %(name)s - %(message)s".
  sink_->logger.set_pattern("%Y-%m-%d %H:%M:%S,%e - %l - %n - %v");
  sink_->logger.set_level(level_of(level));
}

LogLines::~LogLines() = default;

bool LogLines::should_log(int level) const { return sink_->logger.should_log(level_of(level)); }

// The text is passed as a string view and not as a format, because it may contain braces.
void LogLines::write(int level, const std::string& text) {
  sink_->logger.log(level_of(level), spdlog::string_view_t(text));
}

}  // namespace accel::terminal

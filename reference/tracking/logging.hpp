#pragma once

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <string_view>
#include <utility>

namespace accel {
struct RankContext;
}

/// Loggers that are aware of the rank.
///
///     const auto logger = accel::logging::get_logger("train");
///     logger.info("epoch {} begins", epoch);                              // rank 0 only
///     logger.warning("this node is slow", {.main_process_only = false});  // [RANK 3] this node is slow
///     logger.info(fmt::format("loss {}", loss), {.in_order = true});      // every rank in turn; collective
///
/// Lines go to standard error, above progress bars: time - level - name - [RANK r] text.
/// Source: accelerate/logging.py, MultiProcessAdapter and get_logger.
namespace accel::logging {

enum class Level { kDebug, kInfo, kWarning, kError, kCritical };

struct LogOptions {
  bool main_process_only = true;
  /// Ranks log one after the other, regardless of main_process_only. Collective if the level is enabled; needs one
  /// barrier per rank.
  bool in_order = false;
  std::source_location where = std::source_location::current();
};

/// Thread rule: a value, usable on any thread that runs a rank, or on any thread if the logger has its own context.
class Logger {
 public:
  template <typename... Args>
  void debug(fmt::format_string<Args...> text, Args&&... args) const {
    log(Level::kDebug, text, std::forward<Args>(args)...);
  }
  template <typename... Args>
  void info(fmt::format_string<Args...> text, Args&&... args) const {
    log(Level::kInfo, text, std::forward<Args>(args)...);
  }
  template <typename... Args>
  void warning(fmt::format_string<Args...> text, Args&&... args) const {
    log(Level::kWarning, text, std::forward<Args>(args)...);
  }
  template <typename... Args>
  void error(fmt::format_string<Args...> text, Args&&... args) const {
    log(Level::kError, text, std::forward<Args>(args)...);
  }
  template <typename... Args>
  void critical(fmt::format_string<Args...> text, Args&&... args) const {
    log(Level::kCritical, text, std::forward<Args>(args)...);
  }

  // The text is not a format string here.
  void debug(const std::string& text, LogOptions options) const { log(Level::kDebug, text, options); }
  void info(const std::string& text, LogOptions options) const { log(Level::kInfo, text, options); }
  void warning(const std::string& text, LogOptions options) const { log(Level::kWarning, text, options); }
  void error(const std::string& text, LogOptions options) const { log(Level::kError, text, options); }
  void critical(const std::string& text, LogOptions options) const { log(Level::kCritical, text, options); }

  /// Throws StateError on a thread that runs no rank if the logger has no context.
  void log(Level level, const std::string& text, LogOptions options) const;
  /// Like `warning`, but only once per text and rank during the lifetime of this logger and its copies.
  void warning_once(const std::string& text, LogOptions options = {}) const;
  [[nodiscard]] bool is_enabled_for(Level level) const;

 private:
  friend Logger get_logger(const std::string&, const struct LoggerOptions&);
  struct State;
  explicit Logger(std::shared_ptr<State> state) : state_(std::move(state)) {}
  template <typename... Args>
  void log(Level level, fmt::format_string<Args...> text, Args&&... args) const {
    if (is_enabled_for(level)) log(level, fmt::format(text, std::forward<Args>(args)...), LogOptions{});
  }

  std::shared_ptr<State> state_;
};

struct LoggerOptions {
  /// "debug", "info", "warning", "error" or "critical", case-insensitive. Default: ACCELERATE_LOG_LEVEL or "warning",
  /// the level of Python's root logger. Applies to this logger only; Accelerate also sets the root logger's level.
  std::optional<std::string> log_level = {};
  RankContext* context = nullptr;  ///< default: the rank that the calling thread runs
};

/// Creates a logger. Throws ConfigError for an unknown level.
[[nodiscard]] Logger get_logger(const std::string& name, const LoggerOptions& options = {});

}  // namespace accel::logging

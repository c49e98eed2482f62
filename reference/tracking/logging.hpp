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

/// Logs that know their rank.
///
///     const auto logger = accel::logging::get_logger("train");
///     logger.info("epoch {} begins", epoch);                              // rank 0 alone
///     logger.warning("this node is slow", {.main_process_only = false});  // [RANK 3] this node is slow
///     logger.info(fmt::format("loss {}", loss), {.in_order = true});      // every rank in turn; collective
///
/// Lines go to standard error, above progress bars: time - level - name - [RANK r] text.
/// Source: accelerate/logging.py, MultiProcessAdapter and get_logger.
namespace accel::logging {

enum class Level { kDebug, kInfo, kWarning, kError, kCritical };

struct LogOptions {
  bool main_process_only = true;
  /// Ranks log one after the other, whatever main_process_only says. Collective, with as many barriers as ranks, where
  /// the level is on.
  bool in_order = false;
  std::source_location where = std::source_location::current();
};

/// Thread rule: a value; any thread that runs a rank, or any thread at all if it has a context of its own.
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

  // The text as it is, with options.
  void debug(const std::string& text, LogOptions options) const { log(Level::kDebug, text, options); }
  void info(const std::string& text, LogOptions options) const { log(Level::kInfo, text, options); }
  void warning(const std::string& text, LogOptions options) const { log(Level::kWarning, text, options); }
  void error(const std::string& text, LogOptions options) const { log(Level::kError, text, options); }
  void critical(const std::string& text, LogOptions options) const { log(Level::kCritical, text, options); }

  /// Throws StateError on a thread that runs no rank, if the logger has no context of its own.
  void log(Level level, const std::string& text, LogOptions options) const;
  /// As `warning`, once for each text and rank in the life of this logger and its copies.
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
  /// "debug", "info", "warning", "error" or "critical", in any case; default: ACCELERATE_LOG_LEVEL, else "warning",
  /// which is what Python's root logger has. Of this logger alone; Accelerate's sets the root's too.
  std::optional<std::string> log_level = {};
  RankContext* context = nullptr;  ///< default: the rank that the calling thread runs
};

/// Throws ConfigError for a level that is none.
[[nodiscard]] Logger get_logger(const std::string& name, const LoggerOptions& options = {});

}  // namespace accel::logging

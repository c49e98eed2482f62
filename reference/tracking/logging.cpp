#include "reference/tracking/logging.hpp"

#include <algorithm>
#include <array>
#include <mutex>
#include <set>

#include "reference/config/environment.hpp"
#include "reference/core/errors.hpp"
#include "reference/core/letter_case.hpp"
#include "reference/state/rank_context.hpp"
#include "reference/terminal/log_lines.hpp"

namespace accel::logging {
namespace {

// Python's logging also accepts "warn" as a name of the level "warning".
Level read_level(std::string text) {
  text = lower_case(std::move(text));
  constexpr std::array<std::string_view, 5> kNames{"debug", "info", "warning", "error", "critical"};
  const auto* place = std::find(kNames.begin(), kNames.end(), text == "warn" ? "warning" : text);
  check_config(place != kNames.end(),
               "log level '{}' is unknown; expected debug, info, warning, error or critical; set log_level or "
               "ACCELERATE_LOG_LEVEL",
               text);
  return static_cast<Level>(place - kNames.begin());
}

}  // namespace

// Shared by all copies of a logger. Without a context of its own, a logger looks the rank up at each call, so
// that one logger can serve all simulated ranks of a process.
struct Logger::State {
  State(const std::string& name, Level level, RankContext* own_context)
      : lines(name, static_cast<int>(level)), context(own_context) {}
  [[nodiscard]] RankContext& rank() const { return context != nullptr ? *context : current_rank(); }

  terminal::LogLines lines;
  RankContext* context;
  std::mutex mutex;
  std::set<std::pair<int, std::string>> told;  // by rank; guarded by mutex
};

// Source: accelerate/logging.py, MultiProcessAdapter.log. The level is checked before the barriers: it is equal
// on all ranks, so all skip them alike. The rank is looked up first, so that a wrong thread is an error at every
// level.
void Logger::log(Level level, const std::string& text, LogOptions options) const {
  auto& rank = state_->rank();
  if (!is_enabled_for(level)) return;
  const auto write = [&] {
    state_->lines.write(static_cast<int>(level), fmt::format("[RANK {}] {}", rank.rank, text));
  };
  if (!options.in_order) {
    if (!options.main_process_only || rank.rank == 0) write();
    return;
  }
  for (int turn = 0; turn < rank.world_size; ++turn) {
    if (turn == rank.rank) write();
    if (rank.world_size > 1) rank.world.barrier(options.where);
  }
}

void Logger::warning_once(const std::string& text, LogOptions options) const {
  const auto rank = state_->rank().rank;
  {
    // Released before logging: with in_order, the call waits for other ranks.
    const std::lock_guard lock(state_->mutex);
    if (!state_->told.emplace(rank, text).second) return;
  }
  warning(text, options);
}

bool Logger::is_enabled_for(Level level) const { return state_->lines.should_log(static_cast<int>(level)); }

// Each call creates an independent logger. Python's loggers are process-wide by name, which ranks in one process
// must not be.
Logger get_logger(const std::string& name, const LoggerOptions& options) {
  const auto level =
      read_level(options.log_level ? *options.log_level : environment("ACCELERATE_LOG_LEVEL").value_or("warning"));
  return Logger(std::make_shared<Logger::State>(name, level, options.context));
}

}  // namespace accel::logging

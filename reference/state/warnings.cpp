#include "reference/state/warnings.hpp"

#include <algorithm>
#include <cctype>
#include <mutex>

#include "reference/config/environment.hpp"
#include "reference/core/errors.hpp"

namespace accel {
namespace {

bool is_log_level_above_warning() {
  auto level = environment("ACCELERATE_LOG_LEVEL").value_or("");
  std::transform(level.begin(), level.end(), level.begin(), [](unsigned char letter) { return std::tolower(letter); });
  return level == "error" || level == "critical";
}

// Whether to report; throws where warnings are errors.
bool is_reported(const std::string& text) {
  const auto mode = environment("ACCEL_WARNINGS").value_or("default");
  check_state(mode != "error", "{} (an error because ACCEL_WARNINGS is error)", text);
  check_config(mode == "default" || mode == "ignore", "ACCEL_WARNINGS: expected default, error or ignore, got '{}'",
               mode);
  return mode == "default" && !is_log_level_above_warning();
}

}  // namespace

void warn_once(const RankContext& context, const std::string& text) {
  if (is_reported(text) && context.warned->insert(text).second) context.warn(text);
}

// Without ranks there is no context that could remember the texts.
void warn_once(const std::string& text) {
  if (const auto* context = find_current_rank()) {
    if (context->rank == 0) warn_once(*context, text);
    return;
  }
  static std::mutex mutex;
  static std::set<std::string> warned;
  if (!is_reported(text)) return;
  const std::lock_guard lock(mutex);
  if (warned.insert(text).second) print_warning(text);
}

}  // namespace accel

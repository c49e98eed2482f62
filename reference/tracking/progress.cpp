#include "reference/tracking/progress.hpp"

#include "reference/state/rank_context.hpp"

namespace accel {
namespace {

// tqdm's default mininterval. Drawing more often would cost more than a small training step.
constexpr auto kInterval = std::chrono::milliseconds(100);

// Source: accelerate/utils/tqdm.py: one bar per machine. Simulated ranks all share one terminal, whatever their
// simulated machine is.
bool is_shown(const ProgressOptions& options, const terminal::Terminal& terminal) {
  if (options.disable.value_or(!terminal.is_terminal())) return false;
  if (!options.main_process_only) return true;
  const auto& rank = options.context != nullptr ? *options.context : current_rank();
  return rank.backend == "sim" ? rank.rank == 0 : rank.local_rank == 0;
}

}  // namespace

// A bar that is not shown keeps counting, so that update() behaves the same on all ranks.
ProgressBar::ProgressBar(std::optional<std::int64_t> total, const ProgressOptions& options)
    : state_{.desc = options.desc, .total = total, .unit = options.unit} {
  auto& terminal = terminal::Terminal::standard_error();
  if (!is_shown(options, terminal)) return;
  terminal_ = &terminal;
  bar_ = terminal.add_bar();
  bar_->keep(options.leave);
  draw();
}

// For tests and for tools that own their terminal; independent of ranks.
ProgressBar::ProgressBar(terminal::Terminal& terminal, std::optional<std::int64_t> total,
                         const ProgressOptions& options)
    : state_{.desc = options.desc, .total = total, .unit = options.unit},
      terminal_(&terminal),
      bar_(terminal.add_bar()) {
  bar_->keep(options.leave);
  draw();
}

ProgressBar::~ProgressBar() { close(); }

// The last step is always due: the final postfix must be current.
bool ProgressBar::is_due() const {
  return bar_ && (Clock::now() - drawn_ >= kInterval || (state_.total && state_.done + 1 >= *state_.total));
}

// The clock is read only if the bar is shown: an update must cost nothing in ranks without a bar.
void ProgressBar::update(std::int64_t steps) {
  state_.done += steps;
  if (bar_ && (Clock::now() - drawn_ >= kInterval || state_.done == state_.total)) draw();
}

void ProgressBar::draw() {
  drawn_ = Clock::now();
  state_.seconds = std::chrono::duration<double>(drawn_ - started_).count();
  // One character less than the width: a full line wraps on some terminals.
  bar_->draw(terminal::progress_text(state_, terminal_->width() - 1));
}

// A full bar was drawn by the last update.
void ProgressBar::close() {
  if (!bar_) return;
  if (state_.done != state_.total) draw();
  bar_.reset();
}

}  // namespace accel

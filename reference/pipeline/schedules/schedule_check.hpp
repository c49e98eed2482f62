#pragma once

#include "reference/pipeline/schedules/schedule_times.hpp"

/// Proves that a schedule can run.
///
///     const auto check = check_schedule(schedule, {.send_capacity = 0});
///     if (!check.is_ok()) std::cout << check.text();
///
/// Complete: each stage computes each micro-batch forward once, and each gradient once, on one rank, in an order that
/// the data allow. Each result that another rank needs is sent once and received once. Free of deadlock, for the given
/// capacity of sends. Thread rule: pure.
namespace accel::pipeline {

/// When a rank posts a receive: at its place in the table, or directly before the action that needs the message.
enum class Receives { kEager, kDeferred };

struct CheckOptions {
  std::optional<int> send_capacity = std::nullopt;  ///< see schedule_times.hpp; nullopt: sends never wait
  Receives receives = Receives::kEager;
  std::vector<ActionCosts> costs = {{}};  ///< of every stage, or one of each
};

struct ScheduleCheck {
  std::vector<std::string> problems;  ///< what is missing, twice, or in an impossible order
  std::vector<std::string> cycle;     ///< the ranks that wait for each other, if nothing else is wrong
  std::vector<std::string> notes;     ///< messages that are received in another order than they are sent
  /// Of each rank: forwards of all its stages whose weight gradients are still due.
  std::vector<int> peak_activations;

  /// With messages, and with receives where they are posted; as it was given if there are problems.
  Schedule run;
  ScheduleTimes times;  ///< of `run`; empty if there are problems

  [[nodiscard]] bool is_ok() const { return problems.empty() && cycle.empty(); }
  /// The problems, or the cycle, in one text; "" if there are none.
  [[nodiscard]] std::string text() const;
};

/// Messages are added if the schedule has none.
[[nodiscard]] ScheduleCheck check_schedule(const Schedule& schedule, const CheckOptions& options);

}  // namespace accel::pipeline

#include "reference/pipeline/schedules/action.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "reference/core/errors.hpp"

namespace accel::pipeline {
namespace {

// Source: torch/distributed/pipelining/schedules.py, _ComputationType. In the order of ActionKind.
constexpr std::array<std::string_view, 11> kNames{"F",      "B",      "I",       "W",       "SEND_F",     "RECV_F",
                                                  "SEND_B", "RECV_B", "UNSHARD", "RESHARD", "REDUCE_GRAD"};
constexpr std::string_view kTogether = "OVERLAP_F_B";
constexpr int kNumberMax = 999'999'999;  // so that the next number is an int too

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r";
  const auto begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) + 1 - begin);
}

// Takes a number from the front of the text.
std::optional<int> take_number(std::string_view& text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0 || number > kNumberMax || text.front() == '-') return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

std::optional<Action> parsed(std::string_view text) {
  const auto stage = take_number(text);
  if (!stage) return std::nullopt;
  const auto digits = text.find_first_of("0123456789");
  const auto name = std::find(kNames.begin(), kNames.end(), text.substr(0, digits));
  if (name == kNames.end()) return std::nullopt;
  Action action{.kind = static_cast<ActionKind>(name - kNames.begin()), .stage = *stage};
  if (!has_micro_batch(action.kind)) return digits == std::string_view::npos ? std::optional(action) : std::nullopt;
  if (digits == std::string_view::npos) return std::nullopt;
  text.remove_prefix(digits);
  const auto micro_batch = take_number(text);
  if (!micro_batch || !text.empty()) return std::nullopt;
  action.micro_batch = *micro_batch;
  return action;
}

}  // namespace

Action other_end_of(const Action& message) {
  switch (message.kind) {
    case ActionKind::kSendForward: return {ActionKind::kReceiveForward, message.stage + 1, message.micro_batch};
    case ActionKind::kReceiveForward: return {ActionKind::kSendForward, message.stage - 1, message.micro_batch};
    case ActionKind::kSendBackward: return {ActionKind::kReceiveBackward, message.stage - 1, message.micro_batch};
    case ActionKind::kReceiveBackward: return {ActionKind::kSendBackward, message.stage + 1, message.micro_batch};
    default: throw InternalError(fmt::format("{} is no message", to_string(message)));
  }
}

Action receive_for(const Action& computation) {
  const bool is_forward = computation.kind == ActionKind::kForward;
  return {is_forward ? ActionKind::kReceiveForward : ActionKind::kReceiveBackward, computation.stage,
          computation.micro_batch};
}

std::string to_string(const Action& action) {
  auto text = fmt::format("{}{}", action.stage, kNames[static_cast<std::size_t>(action.kind)]);
  if (has_micro_batch(action.kind)) text += std::to_string(action.micro_batch);
  return text;
}

std::vector<Action> parse_cell(std::string_view text) {
  const auto cell = trimmed(text);
  if (cell.empty()) return {};
  const auto invalid = [&] {
    return ArgumentError(
        fmt::format("'{}' is no action; expected STAGE, one of F, B, I, W, SEND_F, RECV_F, SEND_B, RECV_B, and "
                    "MICRO_BATCH, such as 2F0; STAGE and UNSHARD, RESHARD or REDUCE_GRAD; or "
                    "(2F0;1B1)OVERLAP_F_B",
                    cell));
  };
  if (cell.front() != '(') {
    const auto action = parsed(cell);
    if (!action) throw invalid();
    return {*action};
  }
  const auto end = cell.find(')');
  if (end == std::string_view::npos || trimmed(cell.substr(end + 1)) != kTogether) throw invalid();
  std::vector<Action> actions;
  for (auto rest = cell.substr(1, end - 1); !rest.empty();) {
    const auto part = rest.substr(0, rest.find(';'));
    rest.remove_prefix(std::min(rest.size(), part.size() + 1));
    const auto action = parsed(trimmed(part));
    if (!action || !is_compute(action->kind)) throw invalid();
    actions.push_back(*action);
  }
  if (actions.empty()) throw invalid();
  for (std::size_t index = 0; index + 1 < actions.size(); ++index) actions[index].joins_next = true;
  return actions;
}

std::vector<std::string> cells_of(const std::vector<Action>& actions) {
  std::vector<std::string> cells;
  for (std::size_t index = 0; index < actions.size(); ++index) {
    auto cell = to_string(actions[index]);
    const bool is_joined = actions[index].joins_next;
    for (; index + 1 < actions.size() && actions[index].joins_next; ++index)
      cell += ";" + to_string(actions[index + 1]);
    cells.push_back(is_joined ? fmt::format("({}){}", cell, kTogether) : std::move(cell));
  }
  return cells;
}

}  // namespace accel::pipeline

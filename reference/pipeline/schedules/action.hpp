#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

/// One entry in the table of a pipeline schedule: what a rank does, for which stage and micro-batch.
///
///     to_string(Action{ActionKind::kForward, 2, 0})   // "2F0", as torch.distributed.pipelining writes it
///
/// Thread rule: values.
namespace accel::pipeline {

/// kBackward computes the gradients of inputs and weights; kBackwardInput and kBackwardWeight one of them. A stage
/// sends its output forward, and the gradient of its input backward. The last three concern shards of parameters
/// (FSDP), and have no micro-batch.
enum class ActionKind : std::uint8_t {
  kForward,
  kBackward,
  kBackwardInput,
  kBackwardWeight,
  kSendForward,
  kReceiveForward,
  kSendBackward,
  kReceiveBackward,
  kUnshard,
  kReshard,
  kReduceGradients
};

struct Action {
  ActionKind kind{};
  int stage = 0;
  int micro_batch = 0;
  bool joins_next = false;  ///< runs together with the next action of its rank: both first, then the messages of both

  /// joins_next does not count.
  bool operator==(const Action& other) const {
    return kind == other.kind && stage == other.stage && micro_batch == other.micro_batch;
  }
};

[[nodiscard]] constexpr bool is_compute(ActionKind kind) { return kind <= ActionKind::kBackwardWeight; }
[[nodiscard]] constexpr bool is_send(ActionKind kind) {
  return kind == ActionKind::kSendForward || kind == ActionKind::kSendBackward;
}
[[nodiscard]] constexpr bool is_receive(ActionKind kind) {
  return kind == ActionKind::kReceiveForward || kind == ActionKind::kReceiveBackward;
}
[[nodiscard]] constexpr bool has_micro_batch(ActionKind kind) { return kind < ActionKind::kUnshard; }
/// Whether it computes the gradient of the stage's input.
[[nodiscard]] constexpr bool has_input_gradient(ActionKind kind) {
  return kind == ActionKind::kBackward || kind == ActionKind::kBackwardInput;
}
/// Whether it computes the gradients of the stage's weights, after which nothing needs the stage's activations.
[[nodiscard]] constexpr bool has_weight_gradient(ActionKind kind) {
  return kind == ActionKind::kBackward || kind == ActionKind::kBackwardWeight;
}

/// The action at the other end of a message: the receive of a send, the send of a receive.
[[nodiscard]] Action other_end_of(const Action& message);
/// The receive of what a forward, or a gradient of an input, needs of the stage before or after.
[[nodiscard]] Action receive_for(const Action& computation);

[[nodiscard]] std::string to_string(const Action& action);

/// Reads one cell of a table: an action, or two as "(2F0;1B1)OVERLAP_F_B". An empty cell has none. Throws
/// ArgumentError.
[[nodiscard]] std::vector<Action> parse_cell(std::string_view text);

/// The cells of a row: actions that run together share one.
[[nodiscard]] std::vector<std::string> cells_of(const std::vector<Action>& actions);

}  // namespace accel::pipeline

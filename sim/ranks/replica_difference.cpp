#include "sim/ranks/replica_difference.hpp"

#include <fmt/format.h>

#include <functional>
#include <utility>

#include "sim/engine/run_error.hpp"

namespace accel::sim {
namespace {

using Gradient = ParameterState::Gradient;

template <typename F>
std::vector<int> ranks_unlike_the_rest(const std::vector<ParameterState>& states, const std::vector<int>& ranks,
                                       F property) {
  std::vector<std::invoke_result_t<F, const ParameterState&>> values;
  for (const auto& state : states) values.push_back(property(state));
  auto others = minority(values);
  for (auto& other : others) other = ranks[other];
  return others;
}

std::vector<int> ranks_with(Gradient gradient, const std::vector<ParameterState>& states,
                            const std::vector<int>& ranks) {
  std::vector<int> found;
  for (std::size_t index = 0; index < states.size(); ++index) {
    if (states[index].gradient == gradient) found.push_back(ranks[index]);
  }
  return found;
}

// From the most telling fact to the least: a converted parameter has another gradient, too.
std::string cause(const std::vector<ParameterState>& states, const std::vector<int>& ranks) {
  const auto dtype = [](const ParameterState& state) { return state.dtype; };
  if (const auto others = ranks_unlike_the_rest(states, ranks, dtype); !others.empty()) {
    const auto of_other = states[std::find(ranks.begin(), ranks.end(), others.front()) - ranks.begin()].dtype;
    return fmt::format("it is converted on {} ({}) only; convert the module before prepare, on every rank alike",
                       describe_ranks(others), c10::toString(of_other));
  }
  const auto is_partial = [&](const std::vector<int>& some) { return !some.empty() && some.size() < ranks.size(); };
  if (const auto frozen = ranks_with(Gradient::kFrozen, states, ranks); is_partial(frozen)) {
    return fmt::format("it is frozen (requires_grad is false) on {} only; freeze it on every rank in the same step",
                       describe_ranks(frozen));
  }
  if (const auto without = ranks_with(Gradient::kMissing, states, ranks); is_partial(without)) {
    return fmt::format(
        "it has no gradient on {} only; every rank must run backward through the prepared model, and a program that "
        "erases or writes gradients must do it on every rank alike",
        describe_ranks(without));
  }
  const bool has_gradients = ranks_with(Gradient::kPresent, states, ranks).size() == ranks.size();
  if (has_gradients) {
    const auto gradient = [](const ParameterState& state) { return state.gradient_hash; };
    const bool is_known =
        std::all_of(states.begin(), states.end(), [&](const auto& state) { return gradient(state) != 0; });
    if (!is_known) return "";
    if (!ranks_unlike_the_rest(states, ranks, gradient).empty())
      return "its gradients differ, so they were not averaged, or were written after the average";
  }
  return "no gradient explains it, so a rank wrote the parameter itself (an assignment, a file that it loaded, another "
         "parameter in its place), or its optimizer has another learning rate or state";
}

}  // namespace

std::string likely_cause(const std::vector<ParameterState>& states, const std::vector<int>& ranks) {
  const auto text = cause(states, ranks);
  return text.empty() ? "" : "likely cause: " + text + "; ";
}

}  // namespace accel::sim

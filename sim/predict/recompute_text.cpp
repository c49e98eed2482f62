#include "sim/predict/recompute_text.hpp"

#include <algorithm>
#include <cctype>
#include <sstream>
#include <vector>

#include "sim/predict/input_rules.hpp"

namespace accel::predict {
namespace {

std::vector<double> numbers_of(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c) == 0; }, ' ');
  std::istringstream words(text);
  std::vector<double> numbers;
  for (double number = 0; words >> number;) numbers.push_back(number);
  return numbers;
}

}  // namespace

bool read_recompute(const std::string& text, int num_layers, Recomputation& recompute) {
  if (text.empty() || contains(text, "none") || text == "false") return true;
  if (contains(text, "selective_op")) {
    recompute.products = 0.5;
    recompute.elementwise = true;
    return true;
  }
  if (contains(text, "full") || text == "true") {
    const auto numbers = numbers_of(text);
    const double layers = numbers.empty() ? num_layers : numbers.front();
    recompute.layers = num_layers > 0 ? std::min(1.0, layers / num_layers) : 1;
    return true;
  }
  recompute.attention = contains(text, "selective") || contains(text, "core_attn") || contains(text, "core attention");
  recompute.norms = contains(text, "norm");
  recompute.activation = contains(text, "act") && !contains(text, "activation checkpoint");
  if (recompute.attention && !contains(text, "moe_act") && !contains(text, "mlp_act")) recompute.activation = false;
  if (contains(text, "mlp") || (contains(text, "moe") && !contains(text, "moe_act"))) recompute.products = 0.6;
  return recompute.attention || recompute.norms || recompute.activation || recompute.products > 0;
}

}  // namespace accel::predict

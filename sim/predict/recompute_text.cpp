#include "sim/predict/recompute_text.hpp"

#include <algorithm>
#include <regex>
#include <set>
#include <sstream>
#include <vector>

#include "sim/predict/input_rules.hpp"

namespace accel::predict {
namespace {

std::vector<std::string> words_of(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return std::isalnum(c) == 0 && c != '_'; }, ' ');
  std::istringstream in(text);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

// "20 of 80", "block 20" or "20 layers"; the size of uniform chunks selects no layers.
double share_of_layers(const std::string& text, int num_layers) {
  static const std::regex kShare(R"((\d{1,6}) of (\d{1,6}))"), kBlock(R"(block\D*(\d{1,6}))"),
      kLayers(R"((\d{1,6}) layers)");
  std::smatch found;
  if (std::regex_search(text, found, kShare))
    return std::clamp(std::stod(found[1]) / std::max(1.0, std::stod(found[2])), 0.0, 1.0);
  const bool is_uniform = contains(text, "uniform");
  if (num_layers > 0 &&
      (std::regex_search(text, found, kBlock) || (!is_uniform && std::regex_search(text, found, kLayers))))
    return std::min(1.0, std::stod(found[1]) / num_layers);
  return 1;
}

bool read_part(const std::string& word, Recomputation& recompute) {
  static const std::vector<std::pair<std::set<std::string>, bool Recomputation::*>> kParts = {
      {{"selective", "core_attn", "core_attention", "attention", "attn"}, &Recomputation::attention},
      {{"layernorm", "rmsnorm", "norm", "norms"}, &Recomputation::norms},
      {{"moe_act", "mlp_act", "act", "activation", "swiglu"}, &Recomputation::activation},
      {{"mlp", "ffn"}, &Recomputation::mlp},
      {{"moe", "experts"}, &Recomputation::experts},
      {{"shared_experts", "shared_expert"}, &Recomputation::shared_experts},
      {{"mla_up_proj", "mla_up", "mla"}, &Recomputation::latent_projections}};
  for (const auto& [names, member] : kParts) {
    if (!names.contains(word)) continue;
    recompute.*member = true;
    return true;
  }
  return false;
}

}  // namespace

bool read_recompute(const std::string& given, int num_layers, Recomputation& recompute) {
  const auto text = lowercase(given);
  for (const auto* nothing : {"", "none", "false", "no", "null", "~"})
    if (text == nothing) return true;
  if (contains(text, "selective_op")) {
    recompute.products = 0.5;
    return true;
  }
  if (contains(text, "full") || contains(text, "block") || text == "true") {
    recompute.layers = share_of_layers(text, num_layers);
    return true;
  }
  bool is_known = true;
  for (const auto& word : words_of(text)) {
    if (word != "and" && word != "recompute" && word != "modules") is_known = read_part(word, recompute) && is_known;
  }
  return is_known;
}

}  // namespace accel::predict

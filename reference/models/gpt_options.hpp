#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reference/config/field.hpp"

/// Options of models::gpt, their names in files, and their checks.
///
///     accel::models::GptOptions options{.layers = 2, .heads = 4, .width = 64, .positions = "rotary"};
///     for (const auto& problem : accel::models::problems_between(options)) report(problem.name, problem.text);
///
/// Thread rule: values and pure functions.
namespace accel {
class DeviceMesh;
}

namespace accel::models {

/// The frequencies of rotary embeddings. Names and defaults are those of `rope_parameters` in a Llama's config.json.
struct RopeParameters {
  double rope_theta = 10000.0;
  std::string rope_type = "default";  ///< "linear" divides all frequencies by `factor`, "llama3" the low ones
  double factor = 1.0;
  double low_freq_factor = 1.0, high_freq_factor = 4.0;  ///< llama3: the range between high and low frequencies
  std::int64_t original_max_position_embeddings = 8192;  ///< llama3: tokens of the sequences before scaling
};

/// The default is GPT-2's shape. A Llama has rotary positions, "rms_norm", "swiglu", and neither a bias nor a tied
/// output.
struct GptOptions {
  std::int64_t vocab_size = 256;   ///< 256: the tokens are bytes
  std::int64_t block_size = 1024;  ///< the longest sequence, in tokens
  std::int64_t layers = 12, heads = 12;
  std::int64_t width = 768;  ///< embedding size; a multiple of `heads`, unless `head_width` is given
  double dropout = 0.0;
  bool bias = true;  ///< of linear layers and layer norms
  /// "learned": an embedding per position. "rotary": attention rotates queries and keys by their positions; modules
  /// then have transformers' names for Llama, and initial weights are drawn as there.
  std::string positions = "learned";
  std::string norm = "layer_norm";  ///< or "rms_norm"
  double norm_eps = 1e-5;
  std::string feed_forward = "gelu";                    ///< or "swiglu"
  std::optional<std::int64_t> feed_forward_width = {};  ///< absent: 4 * width
  std::optional<std::int64_t> key_value_heads = {};     ///< fewer: each serves several heads; absent: `heads`
  std::optional<std::int64_t> head_width = {};          ///< absent: width / heads
  bool tied_output = true;                              ///< the token embedding is also the output layer
  std::optional<std::int64_t> padding_token = {};       ///< a token whose embedding is zero at first and not trained
  double initial_std = 0.02;                            ///< standard deviation of the initial weights
  RopeParameters rope_parameters = {};
  std::string dtype = "float32";   ///< of the parameters: or "float64", with the same initial numbers
  bool sequence_parallel = false;  ///< tensor-parallel ranks divide the positions where they do not divide weights
  /// Each feed-forward becomes a mixture of this many experts (parallel::MixtureOfExperts), each of the width
  /// `feed_forward_width`; absent: one feed-forward for all tokens. Names and defaults are Mixtral's.
  std::optional<std::int64_t> num_local_experts = {};
  std::int64_t num_experts_per_tok = 2;        ///< with several, their gates are divided by their sum, as in Mixtral
  std::optional<double> capacity_factor = {};  ///< absent: no token is dropped; otherwise see parallel::plan_dispatch
  double router_aux_loss_coef = 0.001;         ///< weight of RoutingLosses::balance of each layer in the loss
};

inline constexpr FieldRule kDropout{"a number in [0, 1)", [](double value) { return value >= 0 && value < 1; }};
inline constexpr const char* kRopeTypes[] = {"default", "linear", "llama3"};
inline constexpr const char* kGptPositions[] = {"learned", "rotary"};
inline constexpr const char* kGptNorms[] = {"layer_norm", "rms_norm"};
inline constexpr const char* kGptFeedForwards[] = {"gelu", "swiglu"};
inline constexpr const char* kGptDtypes[] = {"float32", "float64"};

template <FieldsOf<RopeParameters> Parameters, typename Visit>
void for_each_field(Parameters& parameters, Visit&& visit) {
  visit(Field{"rope_theta", finite_above_zero}, parameters.rope_theta);
  visit(Field{"rope_type", {.choices = kRopeTypes}}, parameters.rope_type);
  visit(Field{"factor", finite_above_zero}, parameters.factor);
  visit(Field{"low_freq_factor", finite_above_zero}, parameters.low_freq_factor);
  visit(Field{"high_freq_factor", finite_above_zero}, parameters.high_freq_factor);
  visit(Field{"original_max_position_embeddings", at_least_one}, parameters.original_max_position_embeddings);
}

/// The keys of an experiment's model: all fields but the vocabulary, which its task determines, and `rope_parameters`.
/// Sizes are required there, because none is typical for a byte-level model.
template <FieldsOf<GptOptions> Options, typename Visit>
void for_each_field(Options& options, Visit&& visit) {
  visit(Field{"layers", at_least_one, /*is_required=*/true}, options.layers);
  visit(Field{"heads", at_least_one, /*is_required=*/true}, options.heads);
  visit(Field{"width", at_least_one, /*is_required=*/true}, options.width);
  visit(Field{"block_size", at_least_one, /*is_required=*/true}, options.block_size);
  visit(Field{"dropout", kDropout}, options.dropout);
  visit(Field{"bias"}, options.bias);
  visit(Field{"positions", {.choices = kGptPositions}}, options.positions);
  visit(Field{"norm", {.choices = kGptNorms}}, options.norm);
  visit(Field{"norm_eps", finite_at_least_zero}, options.norm_eps);
  visit(Field{"feed_forward", {.choices = kGptFeedForwards}}, options.feed_forward);
  visit(Field{"feed_forward_width", at_least_one}, options.feed_forward_width);
  visit(Field{"key_value_heads", at_least_one}, options.key_value_heads);
  visit(Field{"head_width", at_least_one}, options.head_width);
  visit(Field{"tied_output"}, options.tied_output);
  visit(Field{"initial_std", finite_at_least_zero}, options.initial_std);
  visit(Field{"dtype", {.choices = kGptDtypes}}, options.dtype);
  visit(Field{"sequence_parallel"}, options.sequence_parallel);
  visit(Field{"num_local_experts", at_least_one}, options.num_local_experts);
  visit(Field{"num_experts_per_tok", at_least_one}, options.num_experts_per_tok);
  visit(Field{"capacity_factor", finite_above_zero}, options.capacity_factor);
  visit(Field{"router_aux_loss_coef", finite_at_least_zero}, options.router_aux_loss_coef);
}

/// What remains of the options after the defaults that depend on other options.
struct GptSizes {
  std::int64_t key_value_heads, head_width, feed_forward_width;
};
GptSizes sizes_of(const GptOptions& options);

struct GptProblem {
  std::string name = {}, text = {};
};

/// Options whose values do not fit together, with the name of the field to change. The values of single fields are not
/// checked; sizes of 0 cause no problem here.
std::vector<GptProblem> problems_between(const GptOptions& options);

/// Throws one ConfigError with everything that is wrong, also with the options on this mesh.
void check(const GptOptions& options, const DeviceMesh& mesh);

}  // namespace accel::models

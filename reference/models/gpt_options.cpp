#include "reference/models/gpt_options.hpp"

#include "reference/config/field_checks.hpp"
#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/state/device_mesh.hpp"

namespace accel::models {

GptSizes sizes_of(const GptOptions& options) {
  return {.key_value_heads = options.key_value_heads.value_or(options.heads),
          .head_width = options.head_width.value_or(options.width / options.heads),
          .feed_forward_width = options.feed_forward_width.value_or(4 * options.width)};
}

std::vector<GptProblem> problems_between(const GptOptions& options) {
  std::vector<GptProblem> problems;
  const auto heads = options.heads, key_value_heads = options.key_value_heads.value_or(heads);
  if (heads < 1 || key_value_heads < 1) return problems;  // reported with the field
  const bool divides = options.head_width || options.width % heads == 0;
  if (!divides) {
    problems.push_back({"heads", fmt::format("width {} is not divisible by {} heads; expected a multiple of {}",
                                             options.width, heads, heads)});
  }
  if (heads % key_value_heads != 0) {
    problems.push_back(
        {"key_value_heads", fmt::format("{} heads are not divisible by {} key_value_heads; expected a divisor of {}",
                                        heads, key_value_heads, heads)});
  }
  const bool is_rotary = options.positions == "rotary";
  const auto head_width = options.head_width.value_or(options.width / heads);
  if (is_rotary && divides && head_width % 2 != 0) {
    problems.push_back(
        {options.head_width ? "head_width" : "heads",
         fmt::format("rotary positions rotate pairs, so a head needs an even width, got {}", head_width)});
  }
  const auto& rope = options.rope_parameters;
  if (is_rotary && rope.rope_type == "llama3" && rope.low_freq_factor >= rope.high_freq_factor) {
    problems.push_back({"rope_parameters", fmt::format("low_freq_factor {} is not below high_freq_factor {}; expected "
                                                       "a smaller low_freq_factor",
                                                       rope.low_freq_factor, rope.high_freq_factor)});
  }
  if (options.padding_token && (*options.padding_token < 0 || *options.padding_token >= options.vocab_size)) {
    problems.push_back({"padding_token", fmt::format("expected a token from 0 to {}, got {}", options.vocab_size - 1,
                                                     *options.padding_token)});
  }
  if (options.num_local_experts && options.num_experts_per_tok > *options.num_local_experts) {
    problems.push_back({"num_experts_per_tok", fmt::format("expected 1 to {}, the num_local_experts, got {}",
                                                           *options.num_local_experts, options.num_experts_per_tok)});
  }
  if (!options.num_local_experts && options.capacity_factor)
    problems.push_back(
        {"capacity_factor", "has an effect with num_local_experts only; set num_local_experts or remove it"});
  return problems;
}

namespace {

// Those of context and sequence parallelism. `ranks`: the tensor-parallel ones.
std::vector<GptProblem> problems_of_sequences(const ParallelismConfig& config, const GptOptions& options, int ranks) {
  std::vector<GptProblem> problems;
  if ((config.cp_enabled() || config.sp_enabled()) && options.dropout > 0)
    problems.push_back(
        {"dropout", fmt::format("{} is unsupported with cp_size and sp_size above 1, whose attention has "
                                "no dropout; expected 0",
                                options.dropout)});
  const auto heads = options.heads / ranks, key_heads = sizes_of(options).key_value_heads / ranks;
  if (heads % config.sp_size != 0 || key_heads % config.sp_size != 0) {
    problems.push_back({"heads", fmt::format("{} heads and {} key-value heads per tensor-parallel rank do not divide "
                                             "over {} sequence-parallel ranks",
                                             heads, key_heads, config.sp_size)});
  }
  return problems;
}

// Sizes below 1 are reported with their fields.
std::vector<GptProblem> problems_on(const DeviceMesh& mesh, const GptOptions& options) {
  std::vector<GptProblem> problems;
  const auto ranks = mesh["tp"].size();
  const auto divide = [&](const char* name, std::int64_t size) {
    if (size > 0 && size % ranks != 0)
      problems.push_back(
          {name, fmt::format("{} does not divide over {} tensor-parallel ranks; expected a multiple of {}", size, ranks,
                             ranks)});
  };
  divide("heads", options.heads);
  divide("key_value_heads", options.key_value_heads.value_or(0));
  // Tensor-parallel ranks hold complete experts.
  if (!options.num_local_experts) divide("feed_forward_width", options.feed_forward_width.value_or(4 * options.width));
  if (ranks > 1 && options.vocab_size > 0 &&
      part_of_length(options.vocab_size, {.index = ranks - 1, .num_parts = ranks}).size() == 0)
    problems.push_back({"vocab_size", fmt::format("{} over {} tensor-parallel ranks leaves the last rank without any "
                                                  "token; expected more",
                                                  options.vocab_size, ranks)});
  const auto& config = mesh.config();
  if (const auto experts = options.num_local_experts; experts && *experts % config.ep_size != 0) {
    problems.push_back(
        {"num_local_experts", fmt::format("{} do not divide over {} expert-parallel ranks; expected a multiple of {}",
                                          *experts, config.ep_size, config.ep_size)});
  }
  if (config.pp_size > 1 && options.num_local_experts)
    problems.push_back({"num_local_experts", fmt::format("experts are unsupported with pp_size {}", config.pp_size)});
  for (auto& problem : problems_of_sequences(config, options, ranks)) problems.push_back(std::move(problem));
  return problems;
}

}  // namespace

void check(const GptOptions& options, const DeviceMesh& mesh) {
  auto problems = problems_of_fields("gpt: ", options);
  check_field("gpt: ", Field{"vocab_size", at_least_one}, options.vocab_size, problems);
  for (auto& problem : problems_of_fields("gpt: rope_parameters: ", options.rope_parameters))
    problems.push_back(std::move(problem));
  for (const auto& found : {problems_between(options), problems_on(mesh, options)})
    for (const auto& [name, text] : found) problems.push_back(fmt::format("gpt: {}: {}", name, text));
  check_config(problems.empty(), "{}", listed(problems, "\n"));
}

}  // namespace accel::models

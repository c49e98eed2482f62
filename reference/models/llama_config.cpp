// Reads transformers' config.json of a Llama. JSON is read by the YAML parser, which reports lines.
#include <array>
#include <filesystem>

#include "reference/config/yaml_reader.hpp"
#include "reference/core/errors.hpp"
#include "reference/models/gpt.hpp"

namespace accel::models {
namespace {

constexpr const char* kLlamas[] = {"llama"};
constexpr const char* kActivations[] = {"silu"};

// The key of each field to which a problem between fields refers.
std::string llama_key(const std::string& field) {
  constexpr std::array<std::pair<const char*, const char*>, 4> kKeys{{{"heads", "num_attention_heads"},
                                                                      {"key_value_heads", "num_key_value_heads"},
                                                                      {"head_width", "head_dim"},
                                                                      {"padding_token", "pad_token_id"}}};
  for (const auto& [name, key] : kKeys) {
    if (field == name) return key;
  }
  return field;
}

// Version 5 of transformers writes rope_parameters. Version 4 wrote rope_theta beside rope_scaling, which is null for
// the default type, and early versions called the type `type`.
void read_rope(YamlReader& reader, GptOptions& options) {
  auto& rope = options.rope_parameters;
  reader.read(Field{"rope_theta", finite_above_zero}, rope.rope_theta);
  rope.original_max_position_embeddings = options.block_size;
  for (const auto* key : {"rope_scaling", "rope_parameters"}) {
    auto parameters = reader.mapping(key);
    if (!reader.has(key)) continue;
    parameters.read(Field{"type", {.choices = kRopeTypes}}, rope.rope_type);
    parameters.read(rope);
    parameters.finish_keys();
    if (rope.rope_type == "default") continue;
    for (const auto* needed : {"factor", "low_freq_factor", "high_freq_factor"}) {
      if ((rope.rope_type == "llama3" || needed == std::string("factor")) && !parameters.has(needed))
        parameters.missing(needed);
    }
  }
}

GptOptions read_options(YamlReader& reader) {
  GptOptions options{.vocab_size = 32000,
                     .block_size = 2048,
                     .layers = 32,
                     .heads = 32,
                     .width = 4096,
                     .bias = false,
                     .positions = "rotary",
                     .norm = "rms_norm",
                     .norm_eps = 1e-6,
                     .feed_forward = "swiglu",
                     .feed_forward_width = 11008,
                     .tied_output = false};
  std::string model_type, activation = "silu";
  bool mlp_bias = false;
  double attention_dropout = 0;
  reader.read(Field{.name = "model_type", .rule = {.choices = kLlamas}, .is_required = true}, model_type);
  reader.read(Field{"vocab_size", at_least_one}, options.vocab_size);
  reader.read(Field{"hidden_size", at_least_one}, options.width);
  reader.read(Field{"intermediate_size", at_least_one}, options.feed_forward_width);
  reader.read(Field{"num_hidden_layers", at_least_one}, options.layers);
  reader.read(Field{"num_attention_heads", at_least_one}, options.heads);
  reader.read(Field{"num_key_value_heads", at_least_one}, options.key_value_heads);
  reader.read(Field{"head_dim", at_least_one}, options.head_width);
  reader.read(Field{"max_position_embeddings", at_least_one}, options.block_size);
  reader.read(Field{"rms_norm_eps", finite_at_least_zero}, options.norm_eps);
  reader.read(Field{"initializer_range", finite_at_least_zero}, options.initial_std);
  reader.read(Field{"tie_word_embeddings"}, options.tied_output);
  reader.read(Field{"pad_token_id"}, options.padding_token);
  reader.read(Field{"hidden_act", {.choices = kActivations}}, activation);
  reader.read(Field{"attention_bias"}, options.bias);
  reader.read(Field{"mlp_bias"}, mlp_bias);
  reader.read(Field{"attention_dropout", finite_at_least_zero}, attention_dropout);
  // As in Python, a negative index counts from the end.
  if (options.padding_token.value_or(0) < 0) *options.padding_token += options.vocab_size;
  if (mlp_bias != options.bias) {
    reader.problem("mlp_bias", fmt::format("{}, but attention_bias is {}; a bias in some linear layers only is "
                                           "unsupported; expected equal values",
                                           mlp_bias, options.bias));
  }
  if (attention_dropout > 0)
    reader.problem("attention_dropout", "dropout of attention weights only is unsupported; set it to 0");
  read_rope(reader, options);
  return options;
}

}  // namespace

GptOptions read_llama_config(const std::string& path) {
  const auto file = std::filesystem::is_directory(path) ? path + "/config.json" : path;
  YamlProblems problems(file);
  YamlReader reader(load_yaml(file, "a config.json of transformers", problems), "", problems);
  const auto options = read_options(reader);
  if (!problems.any()) {
    for (const auto& [name, text] : problems_between(options)) reader.problem(llama_key(name), text);
  }
  problems.throw_if_any();
  return options;
}

}  // namespace accel::models

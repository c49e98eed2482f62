#include "sim/predict/training_run.hpp"

#include <fmt/ranges.h>

#include "reference/config/yaml_reader.hpp"
#include "reference/core/errors.hpp"
#include "sim/predict/framework.hpp"
#include "sim/predict/input_rules.hpp"
#include "sim/predict/recompute_text.hpp"
#include <algorithm>
#include <cmath>

namespace accel::predict {
namespace {

bool is_count(double value) { return value >= 1 && value <= 1e12 && value == std::floor(value); }
bool is_count_or_zero(double value) { return value == 0 || is_count(value); }
constexpr double kMostGpus = 1 << 20;
constexpr double kBatchTolerance = 0.05;

double read_count(YamlReader& reader, const std::string& key) {
  return reader.required<double>(key, is_count, "an integer from 1 on");
}
double read_count(YamlReader& reader, const std::string& key, double absent) {
  return reader.optional<double>(key, is_count, "an integer from 1 on").value_or(absent);
}
double read_size(YamlReader& reader, const std::string& key, double absent = 0) {
  return reader.optional<double>(key, is_count_or_zero, "an integer from 0 on").value_or(absent);
}
// The value of the first key that is present: descriptions spell some keys differently.
double read_first(YamlReader& reader, const std::vector<std::string>& keys) {
  for (const auto& key : keys)
    if (reader.has(key)) return read_size(reader, key);
  return 0;
}

bool is_gated_name(const std::string& activation) {
  return activation == "swiglu" || activation == "geglu" || activation == "reglu" || activation == "glu";
}

void read_experts(YamlReader& reader, ModelShape& model) {
  model.experts = static_cast<int>(read_size(reader, "experts"));
  if (model.experts == 0) return;
  model.top_k = read_count(reader, "top_k");
  model.moe_ffn = read_count(reader, "moe_ffn", model.ffn);
  model.shared_ffn = read_first(reader, {"shared_ffn", "shared_expert_ffn", "moe_shared_ffn"});
  if (model.shared_ffn == 0)
    model.shared_ffn = read_first(reader, {"shared_experts", "num_shared_experts"}) * model.moe_ffn;
  model.dense_layers = static_cast<int>(read_first(reader, {"dense_layers", "first_dense", "first_k_dense"}));
  if (reader.has("top_k") && model.top_k > model.experts)
    reader.problem("top_k", fmt::format("expected at most the {} experts", model.experts));
  if (model.dense_layers > model.layers)
    reader.problem("dense_layers", fmt::format("expected at most the {} layers", model.layers));
}

ModelShape read_model(YamlReader& reader) {
  ModelShape model;
  model.layers = static_cast<int>(std::min(read_count(reader, "layers"), 1e5));
  model.hidden = read_count(reader, "hidden");
  model.heads = read_count(reader, "heads");
  model.kv_heads = read_count(reader, "kv_heads", model.heads);
  model.head_dim = read_count(reader, "head_dim", std::max(1.0, std::floor(model.hidden / std::max(1.0, model.heads))));
  model.ffn = read_count(reader, "ffn");
  model.is_gated = is_gated_name(reader.optional<std::string>("activation").value_or("gelu"));
  model.vocab = read_count(reader, "vocab");
  model.is_tied = reader.optional<bool>("tied").value_or(false);
  model.learned_positions = read_first(reader, {"learned_positions", "max_positions"});
  model.parameters = reader.optional<double>("parameters", is_positive, "a positive number");
  read_experts(reader, model);
  model.q_lora = read_first(reader, {"q_lora_rank", "q_lora"});
  model.kv_lora = read_first(reader, {"kv_lora_rank", "kv_lora"});
  model.rope_dim = read_first(reader, {"qk_rope_head_dim", "rope_dim"});
  model.value_head_dim = read_first(reader, {"v_head_dim", "value_head_dim"});
  model.window = read_size(reader, "window");
  model.window_every = static_cast<int>(read_count(reader, "window_every", 1));
  if (model.kv_heads > 0 && std::fmod(model.heads, model.kv_heads) != 0)
    reader.problem("kv_heads", fmt::format("expected a divisor of the {} heads", model.heads));
  return model;
}

SystemShape read_system(YamlReader& reader) {
  SystemShape system;
  system.gpu = reader.required<std::string>("gpu");
  system.gpus_per_node = read_count(reader, "gpus_per_node", 8);
  system.gpus_per_nvlink_domain = read_count(reader, "gpus_per_nvlink_domain", 0);
  const auto network =
      reader.optional<double>("network_gb_per_s_per_node", is_positive, "a positive number, or nothing if unknown");
  if (network) system.network_bytes_per_second_per_node = *network * 1e9;
  system.nodes_per_switch = read_size(reader, "nodes_per_switch");
  system.oversubscription = reader.optional<double>("oversubscription", is_positive, "a positive number").value_or(1);
  return system;
}

template <typename T>
std::map<std::string, T> read_section(YamlReader& file, const std::string& name, T (*read)(YamlReader&)) {
  std::map<std::string, T> section;
  if (!file.has(name)) file.missing(name);
  auto readers = file.mapping(name);
  for (const auto& key : readers.keys()) {
    auto reader = readers.mapping(key);
    section.emplace(key, read(reader));
  }
  return section;
}

struct Shapes {
  std::map<std::string, ModelShape> models;
  std::map<std::string, SystemShape> systems;
  std::map<std::string, std::string> titles;  // of sources
};

Precision precision_of(YamlReader& reader) {
  const auto text = reader.optional<std::string>("precision").value_or("bf16");
  if (contains(text, "fp4")) return Precision::kFp4;
  if (contains(text, "fp8")) return Precision::kFp8;
  if (contains(text, "bf16")) return Precision::kBf16;
  if (contains(text, "fp16")) return Precision::kFp16;
  reader.problem("precision", fmt::format("expected fp16, bf16, fp8 or fp4, got '{}'", text));
  return Precision::kBf16;
}

// A title, or the traits that follow from the machine and the sharding.
const Framework& framework_of(YamlReader& reader, const Shapes& shapes, TrainingRun& run) {
  if (const auto name = reader.optional<std::string>("framework")) {
    if (const auto* framework = find_framework(*name)) return *framework;
    std::vector<std::string_view> names;
    for (const auto& framework : frameworks()) names.push_back(framework.name);
    reader.problem("framework", fmt::format("expected one of {}, got '{}'", fmt::join(names, ", "), *name));
  }
  const auto title = shapes.titles.find(reader.optional<std::string>("source").value_or(""));
  const auto notes = reader.optional<std::string>("notes").value_or("");
  const Framework* framework = nullptr;
  if (title != shapes.titles.end()) framework = framework_of_title(title->second);
  const bool is_old = framework != nullptr && framework->name == "megatron";
  if (is_old && run.zero == 3 && run.tp * run.pp == 1) framework = find_framework("deepspeed");
  if (framework == nullptr && contains(notes, "DeepSpeed")) framework = find_framework("deepspeed");
  if (framework == nullptr && run.zero == 3) framework = find_framework("fsdp");
  const bool is_ampere = contains(run.system.gpu, "a100") || contains(run.system.gpu, "v100");
  if (framework == nullptr) framework = find_framework(is_ampere ? "megatron" : "megatron_core");
  run.assumptions.push_back(fmt::format("framework {}: {}", framework->name, framework->summary));
  return *framework;
}

AttentionKernel attention_of(YamlReader& reader, const Framework& framework, TrainingRun& run) {
  const auto text = reader.optional<std::string>("attention").value_or("not stated");
  if (contains(text, "cudnn") || contains(text, "flash3") || contains(text, "flash_attention3"))
    return AttentionKernel::kCudnn;
  if (contains(text, "flash1") || contains(text, "flash_attention1") || contains(text, "triton"))
    return AttentionKernel::kFlash1;
  if (contains(text, "flash2") || contains(text, "flash_attention2")) return AttentionKernel::kFlash2;
  // llm-foundry used Triton's version of the first FlashAttention.
  if (contains(text, "flash") && framework.name == "fsdp") return AttentionKernel::kFlash1;
  if (contains(text, "flash") || contains(text, "sdpa") || contains(text, "fused_attention"))
    return framework.has_cudnn_attention ? AttentionKernel::kCudnn : AttentionKernel::kFlash2;
  if (contains(text, "not stated") && framework.has_cudnn_attention) return AttentionKernel::kCudnn;
  if (contains(text, "not stated")) run.assumptions.emplace_back("attention: unfused, as the source does not state it");
  return AttentionKernel::kUnfused;
}

// What notes say about habits that differ from the framework's.
void read_notes(YamlReader& reader, TrainingRun& run) {
  const auto notes = reader.optional<std::string>("notes").value_or("");
  if (contains(notes, "TP communication not overlapped")) run.overlaps_tensor_parallel = false;
  if (contains(notes, "async TP") || contains(notes, "AsyncTP") || contains(notes, "asynchronous tensor parallel"))
    run.overlaps_tensor_parallel = true;
  if (contains(notes, "buckets overlap backward")) run.overlaps_gradients = true;
  if (contains(notes, "no overlap")) run.overlaps_gradients = false;
  run.embedding_counts_as_layer = contains(notes, "one layer less") || contains(notes, "count as a layer");
  run.adds_gradients_apart = contains(notes, "accumulated in fp32");
  run.gathers_fp8 = contains(notes, "float8 all-gather");
  run.pure_half = contains(notes, "PURE");
}

void read_layout(YamlReader& reader, TrainingRun& run) {
  run.gpus = read_count(reader, "gpus");
  run.tp = read_count(reader, "tp", 1);
  run.cp = read_count(reader, "cp", 1);
  run.pp = read_count(reader, "pp", 1);
  run.vpp = read_count(reader, "vpp", 1);
  const double others = run.tp * run.cp * run.pp;
  run.dp = read_count(reader, "dp", others > 0 ? std::max(1.0, std::floor(run.gpus / others)) : 1);
  run.ep = read_count(reader, "ep", 1);
  run.etp = read_count(reader, "etp", 1);
  run.sp = reader.optional<bool>("sp").value_or(false);
  run.zero = static_cast<int>(
      reader
          .optional<double>(
              "zero", [](double value) { return is_count_or_zero(value) && value <= 3; }, "0, 1, 2 or 3")
          .value_or(0));
  run.zero_group = read_size(reader, "zero_group");
  if (run.zero_group >= run.data_ranks()) run.zero_group = 0;
}

void read_batch(YamlReader& reader, TrainingRun& run) {
  run.seq = read_count(reader, "seq");
  run.gbs = read_count(reader, "gbs");
  run.mbs = read_count(reader, "mbs", 1);
  const double per_replica = run.dp > 0 ? run.gbs / run.dp : 0;
  run.micro_batches =
      read_count(reader, "microbatches", std::max(1.0, std::floor(per_replica / std::max(1.0, run.mbs))));
}

// A divisor, and what it divides.
void check_divides(YamlReader& reader, const char* key, double divisor, double number, const char* what) {
  if (divisor > 0 && number > 0 && std::fmod(number, divisor) != 0)
    reader.problem(key, fmt::format("{} does not divide the {} {}", divisor, number, what));
}

void check_layout(YamlReader& reader, const TrainingRun& run) {
  const auto& model = run.model;
  const double product = run.dp * run.tp * run.cp * run.pp;
  if (run.gpus > 0 && product > 0 && product != run.gpus)
    reader.problem("gpus", fmt::format("dp {} x tp {} x cp {} x pp {} are {} GPUs; expected {}", run.dp, run.tp, run.cp,
                                       run.pp, product, run.gpus));
  if (run.gpus > kMostGpus) reader.problem("gpus", fmt::format("expected at most {}", kMostGpus));
  check_divides(reader, "tp", run.tp, model.heads, "heads");
  check_divides(reader, "cp", run.cp, run.seq, "tokens of a sequence");
  if (run.pp * run.vpp > model.layers + 2 && model.layers > 0)
    reader.problem("pp",
                   fmt::format("pp {} x vpp {} stages; expected at most the {} layers", run.pp, run.vpp, model.layers));
  if (run.ep > 1 && model.experts == 0) reader.problem("ep", "the model has no experts");
  if (model.experts > 0) check_divides(reader, "ep", run.ep, model.experts, "experts");
  const double ranks = run.dp * run.cp * run.tp;
  if (model.experts > 0) check_divides(reader, "ep", run.ep * run.etp, ranks, "ranks that dp x cp x tp have");
  if (run.zero_group > 0) check_divides(reader, "zero_group", run.zero_group, run.dp * run.cp, "ranks of dp x cp");
}

// Sources round: a small difference is an assumption.
void check_batch(YamlReader& reader, TrainingRun& run) {
  const double sequences = run.dp * run.mbs * run.micro_batches;
  if (run.gbs <= 0 || sequences <= 0 || sequences == run.gbs) return;
  const auto text = fmt::format("dp {} x mbs {} x microbatches {} are {} sequences; expected {}", run.dp, run.mbs,
                                run.micro_batches, sequences, run.gbs);
  if (std::abs(sequences / run.gbs - 1) > kBatchTolerance) {
    reader.problem("gbs", text);
  } else {
    run.assumptions.push_back("gbs: " + text);
  }
}

template <typename T>
const T* look_up(YamlReader& reader, const std::string& key, const std::map<std::string, T>& section) {
  const auto name = reader.required<std::string>(key);
  const auto found = section.find(name);
  if (found != section.end()) return &found->second;
  std::vector<std::string> names;
  for (const auto& [each, value] : section) names.push_back(each);
  if (reader.has(key))
    reader.problem(key, fmt::format("no {} is named '{}'; expected one of {}", key, name, fmt::join(names, ", ")));
  return nullptr;
}

TrainingRun read_run(YamlReader& reader, const Shapes& shapes) {
  TrainingRun run;
  if (const auto* model = look_up(reader, "model", shapes.models)) run.model = *model;
  if (const auto* system = look_up(reader, "system", shapes.systems)) run.system = *system;
  read_layout(reader, run);
  read_batch(reader, run);
  check_layout(reader, run);
  check_batch(reader, run);
  run.precision = precision_of(reader);
  const auto& framework = framework_of(reader, shapes, run);
  run.framework = framework.name;
  run.attention = attention_of(reader, framework, run);
  const auto recompute = reader.optional<std::string>("recompute").value_or("none");
  if (!read_recompute(recompute, run.model.layers, run.recompute))
    run.assumptions.push_back(fmt::format("recompute '{}' is unknown: nothing is recomputed", recompute));
  // torchtitan's list of kept operators has the product in 16 bits only.
  if (run.recompute.elementwise && run.precision == Precision::kFp8) run.recompute.products = 1;
  run.schedule = reader.optional<std::string>("schedule").value_or(run.vpp > 1 ? "interleaved_1f1b" : "1f1b");
  run.step_seconds = reader.optional<double>("step_seconds", is_positive, "a positive number");
  read_notes(reader, run);
  return run;
}

}  // namespace

double ModelShape::attention_parameters() const {
  if (kv_lora > 0) {
    const double queries = q_lora > 0 ? hidden * q_lora + q_lora * query_width() : hidden * query_width();
    const double up = head_dim - rope_dim + value_width() / heads;
    return queries + hidden * (kv_lora + rope_dim) + kv_lora * heads * up + value_width() * hidden;
  }
  return hidden * (query_width() + key_value_width()) + value_width() * hidden;
}

double ModelShape::total_parameters() const {
  const double dense = attention_parameters() + mlp_parameters(ffn);
  const double sparse =
      attention_parameters() + experts * mlp_parameters(moe_ffn) + mlp_parameters(shared_ffn) + hidden * experts;
  const int num_sparse = experts > 0 ? layers - dense_layers : 0;
  return (layers - num_sparse) * dense + num_sparse * sparse + vocab * hidden * (is_tied ? 1 : 2) +
         learned_positions * hidden;
}

std::vector<DescribedRun> read_runs(const std::string& file) {
  YamlProblems problems(file);
  const auto root = load_yaml(file, "a file of training runs", problems);
  YamlReader reader(root, "", problems);
  Shapes shapes{.models = read_section(reader, "models", read_model),
                .systems = read_section(reader, "systems", read_system)};
  auto sources = reader.mapping("sources");
  for (const auto& key : sources.keys())
    shapes.titles[key] = key + ": " + sources.mapping(key).optional<std::string>("title").value_or("");
  auto readers = reader.required_mappings("runs");
  problems.throw_if_any();
  std::vector<DescribedRun> runs;
  for (std::size_t index = 0; index < readers.size(); ++index) {
    YamlProblems of_run(file);
    YamlReader run_reader(root["runs"][index], fmt::format("runs[{}].", index), of_run);
    DescribedRun described{.run = read_run(run_reader, shapes)};
    described.run.id = run_reader.optional<std::string>("id").value_or(fmt::format("run {}", index + 1));
    try {
      of_run.throw_if_any();
    } catch (const ConfigError& error) {
      described.problem = error.what();
    }
    runs.push_back(std::move(described));
  }
  return runs;
}

}  // namespace accel::predict

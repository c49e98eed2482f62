#include "sim/predict/training_run.hpp"

#include <fmt/ranges.h>

#include "reference/config/yaml_reader.hpp"
#include "reference/core/errors.hpp"
#include "sim/predict/framework.hpp"
#include "sim/predict/input_rules.hpp"
#include "sim/predict/recompute_text.hpp"
#include <algorithm>
#include <cmath>
#include <map>
#include <set>

namespace accel::predict {
namespace {

constexpr double kMostCount = 1e7;
constexpr double kMostWidth = 1e6;
constexpr int kMostLayers = 10'000;
constexpr double kMostGpus = 1 << 20;
constexpr double kBatchTolerance = 0.05;

bool is_count(double value) { return value >= 1 && value <= kMostCount && value == std::floor(value); }
bool is_count_or_zero(double value) { return value == 0 || is_count(value); }

double read_count(YamlReader& reader, const std::string& key) {
  return reader.required<double>(key, is_count, "an integer from 1 to 10,000,000");
}
double read_count(YamlReader& reader, const std::string& key, double absent) {
  return reader.optional<double>(key, is_count, "an integer from 1 to 10,000,000").value_or(absent);
}
double read_size(YamlReader& reader, const std::string& key, double absent = 0) {
  return reader.optional<double>(key, is_count_or_zero, "an integer from 0 to 10,000,000").value_or(absent);
}
// The value of the first key that is present: descriptions spell some keys differently.
double read_first(YamlReader& reader, const std::vector<std::string>& keys) {
  for (const auto& key : keys)
    if (reader.has(key)) return read_size(reader, key);
  return 0;
}

double read_width(YamlReader& reader, const std::string& key) {
  return reader.required<double>(
      key, [](double value) { return is_count(value) && value <= kMostWidth; }, "an integer from 1 to 1,000,000");
}

// "silu" is the name that configurations of gated models use.
bool is_gated_name(const std::string& activation) {
  return contains(activation, "glu") || contains(activation, "silu") || contains(activation, "swish");
}

void read_experts(YamlReader& reader, ModelShape& model) {
  model.experts = static_cast<int>(read_size(reader, "experts"));
  if (model.experts == 0) return;
  model.top_k = read_count(reader, "top_k");
  model.moe_ffn = read_count(reader, "moe_ffn", model.ffn);
  model.shared_ffn = read_first(reader, {"shared_ffn", "shared_expert_ffn", "moe_shared_ffn"});
  if (model.shared_ffn == 0)
    model.shared_ffn = read_first(reader, {"shared_experts", "num_shared_experts", "n_shared_experts"}) * model.moe_ffn;
  model.dense_layers =
      static_cast<int>(read_first(reader, {"dense_layers", "first_dense", "first_k_dense", "first_k_dense_replace"}));
  if (reader.has("top_k") && model.top_k > model.experts)
    reader.problem("top_k", fmt::format("expected at most the {} experts", model.experts));
  if (model.dense_layers > model.layers)
    reader.problem("dense_layers", fmt::format("expected at most the {} layers", model.layers));
}

void read_heads(YamlReader& reader, ModelShape& model) {
  model.heads = read_count(reader, "heads");
  model.kv_heads = read_count(reader, "kv_heads", model.heads);
  model.rope_dim = read_first(reader, {"qk_rope_head_dim", "rope_dim"});
  const double unrotated = read_first(reader, {"qk_nope_head_dim", "nope_dim"});
  const double usual = std::max(1.0, std::floor(model.hidden / std::max(1.0, model.heads)));
  model.head_dim = read_count(reader, "head_dim", unrotated > 0 ? unrotated + model.rope_dim : usual);
  model.q_lora = read_first(reader, {"q_lora_rank", "q_lora"});
  model.kv_lora = read_first(reader, {"kv_lora_rank", "kv_lora"});
  model.value_head_dim = read_first(reader, {"v_head_dim", "value_head_dim"});
  if (model.kv_heads > 0 && std::fmod(model.heads, model.kv_heads) != 0)
    reader.problem("kv_heads", fmt::format("expected a divisor of the {} heads", model.heads));
  if (model.rope_dim > model.head_dim)
    reader.problem("qk_rope_head_dim", fmt::format("expected at most head_dim, {}", model.head_dim));
}

ModelShape read_model(YamlReader& reader, const YAML::Node& node) {
  ModelShape model;
  model.layers = static_cast<int>(reader.required<double>(
      "layers", [](double value) { return is_count(value) && value <= kMostLayers; }, "an integer from 1 to 10,000"));
  model.hidden = read_width(reader, "hidden");
  // A model of experts alone has no other width.
  model.ffn = reader.has("ffn") || !reader.has("moe_ffn") ? read_width(reader, "ffn") : read_width(reader, "moe_ffn");
  model.is_gated = is_gated_name(lowercase(text_under(node, "activation")));
  model.vocab = read_count(reader, "vocab");
  model.is_tied = reader.optional<bool>("tied").value_or(false);
  model.learned_positions = read_first(reader, {"learned_positions", "max_positions"});
  model.parameters = reader.optional<double>("parameters", is_positive, "a positive number");
  read_heads(reader, model);
  read_experts(reader, model);
  model.window = read_size(reader, "window");
  model.window_every = static_cast<int>(read_count(reader, "window_every", 1));
  static const std::set<std::string> kKeys = {"layers",
                                              "hidden",
                                              "heads",
                                              "kv_heads",
                                              "head_dim",
                                              "ffn",
                                              "activation",
                                              "vocab",
                                              "tied",
                                              "parameters",
                                              "active_parameters",
                                              "learned_positions",
                                              "max_positions",
                                              "experts",
                                              "top_k",
                                              "moe_ffn",
                                              "shared_ffn",
                                              "shared_expert_ffn",
                                              "moe_shared_ffn",
                                              "shared_experts",
                                              "num_shared_experts",
                                              "n_shared_experts",
                                              "dense_layers",
                                              "first_dense",
                                              "first_k_dense",
                                              "first_k_dense_replace",
                                              "q_lora_rank",
                                              "q_lora",
                                              "kv_lora_rank",
                                              "kv_lora",
                                              "qk_rope_head_dim",
                                              "rope_dim",
                                              "qk_nope_head_dim",
                                              "nope_dim",
                                              "v_head_dim",
                                              "value_head_dim",
                                              "window",
                                              "window_every",
                                              "source",
                                              "notes"};
  for (const auto& key : reader.keys())
    if (!kKeys.contains(key)) model.unused_keys.push_back(key);
  return model;
}

SystemShape read_system(YamlReader& reader, const YAML::Node& /*node*/) {
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

// An entry of a section, and what is wrong with it.
template <typename T>
struct Entry {
  T shape;
  std::string problem;
};
template <typename T>
using Section = std::map<std::string, Entry<T>>;

std::string text_of(const YamlProblems& problems) {
  try {
    problems.throw_if_any();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

template <typename T>
Section<T> read_section(const YAML::Node& root, const std::string& name, const std::string& file,
                        YamlProblems& file_problems, T (*read)(YamlReader&, const YAML::Node&)) {
  Section<T> section;
  YamlReader of_file(root, "", file_problems);
  if (!of_file.has(name)) of_file.missing(name);
  for (const auto& key : of_file.mapping(name).keys()) {
    YamlProblems problems(file);
    YamlReader of_section(root[name], name + ".", problems);
    auto reader = of_section.mapping(key);
    Entry<T> entry{.shape = read(reader, root[name][key])};
    entry.problem = text_of(problems);
    section.emplace(key, std::move(entry));
  }
  return section;
}

// A title may be anything: without a known one the framework follows from the run.
std::map<std::string, std::string> titles_in(const YAML::Node& root) {
  std::map<std::string, std::string> titles;
  if (!root["sources"] || !root["sources"].IsMap()) return titles;
  for (const auto& source : root["sources"]) {
    if (source.first.IsScalar())
      titles[source.first.Scalar()] = source.first.Scalar() + ": " + text_under(source.second, "title");
  }
  return titles;
}

struct Sections {
  Section<ModelShape> models;
  Section<SystemShape> systems;
  std::map<std::string, std::string> titles;
};

Precision precision_of(YamlReader& reader, const YAML::Node& node) {
  const auto text = lowercase(text_under(node, "precision"));
  if (contains(text, "fp4")) return Precision::kFp4;
  if (contains(text, "fp8") || contains(text, "float8")) return Precision::kFp8;
  if (text.empty() || contains(text, "bf16") || contains(text, "bfloat16")) return Precision::kBf16;
  if (contains(text, "fp16") || contains(text, "float16") || contains(text, "half")) return Precision::kFp16;
  reader.problem("precision", fmt::format("expected fp16, bf16, fp8 or fp4, got '{}'", text));
  return Precision::kBf16;
}

// The framework of a source's title, or what follows from the machine and the sharding.
const Framework* framework_from(const std::string& title, const std::string& notes, const TrainingRun& run) {
  const auto* framework = framework_of_title(title);
  const bool is_old = framework != nullptr && framework->name == "megatron";
  if (is_old && run.zero == 3 && run.tp * run.pp == 1) return find_framework("deepspeed");
  if (framework != nullptr) return framework;
  if (contains(notes, "DeepSpeed")) return find_framework("deepspeed");
  if (run.zero == 3) return find_framework("fsdp");
  const bool is_ampere = contains(run.system.gpu, "a100") || contains(run.system.gpu, "v100");
  return find_framework(is_ampere ? "megatron" : "megatron_core");
}

const Framework& framework_of(YamlReader& reader, const YAML::Node& node, const Sections& sections, TrainingRun& run) {
  if (const auto name = reader.optional<std::string>("framework")) {
    if (const auto* framework = find_framework(*name)) return *framework;
    std::vector<std::string_view> names;
    for (const auto& framework : frameworks()) names.push_back(framework.name);
    reader.problem("framework", fmt::format("expected one of {}, got '{}'", fmt::join(names, ", "), *name));
  }
  const auto title = sections.titles.find(text_under(node, "source"));
  const auto& framework =
      *framework_from(title == sections.titles.end() ? "" : title->second, text_under(node, "notes"), run);
  run.assumptions.push_back(fmt::format("framework {}: {}", framework.name, framework.summary));
  return framework;
}

// Letters and digits in lower case: "FlashAttention-2" is "flashattention2".
std::string squeezed(const std::string& text) {
  auto letters = lowercase(text);
  std::erase_if(letters, [](unsigned char c) { return std::isalnum(c) == 0; });
  return letters;
}

AttentionKernel attention_of(const YAML::Node& node, const Framework& framework, TrainingRun& run) {
  const auto text = squeezed(text_under(node, "attention"));
  const auto is_any_of = [&](std::initializer_list<const char*> words) {
    return std::any_of(words.begin(), words.end(), [&](const char* word) { return contains(text, word); });
  };
  const bool is_stated = !text.empty() && text != "notstated" && text != "null";
  if (is_any_of({"cudnn", "flash3", "flashattention3", "fa3"}) || text == "te") return AttentionKernel::kCudnn;
  if (is_any_of({"flash1", "flashattention1", "triton"})) return AttentionKernel::kFlash1;
  if (is_any_of({"flash2", "flashattention2", "flashattn2", "fa2"})) return AttentionKernel::kFlash2;
  const bool is_fused = is_any_of({"flash", "sdpa", "fusedattention", "fusedattn", "xformers", "memoryefficient"});
  if (is_fused || (!is_stated && framework.attention != AttentionKernel::kUnfused))
    return framework.attention == AttentionKernel::kUnfused ? AttentionKernel::kFlash2 : framework.attention;
  if (!contains(text, "softmax") && !contains(text, "unfused"))
    run.assumptions.push_back(
        fmt::format("attention '{}': unfused, as no fused kernel is named", text_under(node, "attention")));
  return AttentionKernel::kUnfused;
}

void read_notes(const YAML::Node& node, TrainingRun& run) {
  const auto notes = text_under(node, "notes");
  if (contains(notes, "TP communication not overlapped")) run.overlaps_tensor_parallel = false;
  if (contains(notes, "async TP") || contains(notes, "AsyncTP") || contains(notes, "asynchronous tensor parallel"))
    run.overlaps_tensor_parallel = true;
  if (contains(notes, "buckets overlap backward")) run.overlaps_gradients = true;
  if (contains(notes, "gradients reduced after the last micro-batch")) run.overlaps_gradients = false;
  run.embedding_counts_as_layer = contains(notes, "one layer less") || contains(notes, "count as a layer");
  run.has_separate_gradient_sums = contains(notes, "accumulated in fp32");
  run.gathers_fp8 = contains(notes, "float8 all-gather");
  run.has_half_precision_state = contains(notes, "PURE");
}

// Names as publications write them: "1F1B-I", "zb-1p", "ZB-V".
std::string schedule_name(std::string text) {
  text = lowercase(std::move(text));
  std::replace(text.begin(), text.end(), '-', '_');
  std::replace(text.begin(), text.end(), ' ', '_');
  if (text == "1f1b_i" || text == "interleaved" || text == "1f1b_interleaved") return "interleaved_1f1b";
  if (text == "zb_1p" || text == "zb_h1" || text == "zbh1") return "zb_h1";
  if (text == "zb_2p" || text == "zb_h2" || text == "zbh2") return "zb_h2";
  if (text == "zb_v" || text == "zbv") return "zbv";
  if (text == "dualpipev") return "dualpipe_v";
  return text == "afab" ? "gpipe" : text;
}

// Chunks of a rank that the source does not state.
void assume_chunks(TrainingRun& run) {
  if (run.pp <= 1 || run.vpp > 1) return;
  double chunks = 1;
  if (contains(run.schedule, "interleaved")) {
    for (double each = 1; each <= std::floor(run.model.layers / run.pp); ++each)
      if (std::fmod(run.model.layers, run.pp * each) == 0) chunks = each;
  }
  if (run.schedule == "zbv" || run.schedule == "dualpipe_v") chunks = 2;
  if (chunks == 1) return;
  run.vpp = chunks;
  run.assumptions.push_back(fmt::format("vpp {}: not stated for {}", chunks, run.schedule));
}

void read_schedule(YamlReader& reader, const YAML::Node& node, TrainingRun& run) {
  run.vpp = read_count(reader, "vpp", 1);
  const auto text = text_under(node, "schedule");
  run.schedule = text.empty() || text == "null" ? (run.vpp > 1 ? "interleaved_1f1b" : "1f1b") : schedule_name(text);
  if (run.schedule == "1f1b" && run.vpp > 1) run.schedule = "interleaved_1f1b";
  if (run.schedule == "zb_h1" && run.vpp > 1) run.schedule = "interleaved_zero_bubble";
  assume_chunks(run);
}

void read_layout(YamlReader& reader, TrainingRun& run) {
  run.gpus = read_count(reader, "gpus");
  run.tp = read_count(reader, "tp", 1);
  run.cp = read_count(reader, "cp", 1);
  run.pp = read_count(reader, "pp", 1);
  const double others = run.tp * run.cp * run.pp;
  run.dp = read_count(reader, "dp", others > 0 ? std::max(1.0, std::floor(run.gpus / others)) : 1);
  run.ep = read_count(reader, "ep", 1);
  run.etp = read_count(reader, "etp", 1);
  if (run.model.experts > 0 && run.tp > 1 && !reader.has("etp"))
    run.assumptions.emplace_back("etp 1: each expert is complete on its rank");
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
  const double most_stages = model.layers + (run.embedding_counts_as_layer ? 2 : 0);
  if (run.pp * run.vpp > most_stages && model.layers > 0)
    reader.problem("pp",
                   fmt::format("pp {} x vpp {} stages; expected at most the {} layers", run.pp, run.vpp, most_stages));
  if (run.ep > 1 && model.experts == 0) reader.problem("ep", "the model has no experts");
  if (model.experts > 0) check_divides(reader, "ep", run.ep, model.experts, "experts");
  const double ranks = run.dp * run.cp * run.tp;
  if (model.experts > 0 && std::fmod(ranks, run.ep * run.etp) != 0)
    reader.problem("ep", fmt::format("ep {} x etp {} does not divide the {} ranks that dp x cp x tp have", run.ep,
                                     run.etp, ranks));
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
T look_up(YamlReader& reader, const std::string& key, const Section<T>& section) {
  const auto name = reader.required<std::string>(key);
  const auto found = section.find(name);
  if (found == section.end()) {
    std::vector<std::string> names;
    for (const auto& [each, entry] : section) names.push_back(each);
    if (reader.has(key))
      reader.problem(key, fmt::format("no {} is named '{}'; expected one of {}", key, name, fmt::join(names, ", ")));
    return {};
  }
  if (!found->second.problem.empty()) reader.problem(key, found->second.problem);
  return found->second.shape;
}

void note_unused_keys(YamlReader& reader, TrainingRun& run) {
  static const std::set<std::string> kKeys = {"id",
                                              "source",
                                              "where",
                                              "model",
                                              "system",
                                              "framework",
                                              "gpus",
                                              "nodes",
                                              "seq",
                                              "gbs",
                                              "mbs",
                                              "microbatches",
                                              "dp",
                                              "tp",
                                              "sp",
                                              "cp",
                                              "pp",
                                              "vpp",
                                              "ep",
                                              "etp",
                                              "zero",
                                              "zero_group",
                                              "schedule",
                                              "precision",
                                              "recompute",
                                              "attention",
                                              "published",
                                              "step_seconds",
                                              "step_seconds_range",
                                              "conversion",
                                              "missing",
                                              "notes",
                                              "fitted"};
  std::vector<std::string> unused;
  for (const auto& key : reader.keys())
    if (!kKeys.contains(key)) unused.push_back(key);
  if (!unused.empty())
    run.assumptions.push_back(fmt::format("keys of the run that are not used: {}", fmt::join(unused, ", ")));
}

TrainingRun read_run(YamlReader& reader, YamlReader& layout, const YAML::Node& node, const Sections& sections) {
  TrainingRun run;
  run.model = look_up(reader, "model", sections.models);
  run.system = look_up(reader, "system", sections.systems);
  if (!run.model.unused_keys.empty())
    run.assumptions.push_back(
        fmt::format("keys of the model that are not used: {}", fmt::join(run.model.unused_keys, ", ")));
  read_notes(node, run);
  read_layout(reader, run);
  read_schedule(reader, node, run);
  read_batch(reader, run);
  check_layout(layout, run);
  check_batch(layout, run);
  run.precision = precision_of(reader, node);
  const auto& framework = framework_of(reader, node, sections, run);
  run.framework = framework.name;
  run.attention = attention_of(node, framework, run);
  const auto recompute = text_under(node, "recompute");
  if (!read_recompute(recompute, run.model.layers, run.recompute))
    run.assumptions.push_back(fmt::format("recompute '{}': words that are not known were left out", recompute));
  // torchtitan's list of kept operators has the product in 16 bits only.
  if (run.recompute.is_by_operator() && run.precision == Precision::kFp8) run.recompute.products = 1;
  run.step_seconds = reader.optional<double>("step_seconds", is_positive, "a positive number");
  note_unused_keys(reader, run);
  return run;
}

DescribedRun described(const YAML::Node& node, std::size_t index, const std::string& file, const Sections& sections) {
  YamlProblems problems(file);
  DescribedRun result;
  result.run.id = fmt::format("run {}", index + 1);
  if (!node.IsMap()) {
    result.problem = fmt::format("{}: runs[{}]: expected a mapping", file, index);
    return result;
  }
  YamlProblems of_layout(file);
  YamlReader reader(node, fmt::format("runs[{}].", index), problems);
  YamlReader layout(node, fmt::format("runs[{}].", index), of_layout);
  result.run = read_run(reader, layout, node, sections);
  const auto id = text_under(node, "id");
  result.run.id = id.empty() ? fmt::format("run {}", index + 1) : id;
  result.problem = text_of(problems);
  result.layout_problem = text_of(of_layout);
  return result;
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
  const Sections sections{.models = read_section(root, "models", file, problems, read_model),
                          .systems = read_section(root, "systems", file, problems, read_system),
                          .titles = titles_in(root)};
  YamlReader reader(root, "", problems);
  if (!reader.has("runs")) reader.missing("runs");
  if (reader.has("runs") && !root["runs"].IsSequence()) reader.problem("runs", "expected a list");
  problems.throw_if_any();
  std::vector<DescribedRun> runs;
  for (std::size_t index = 0; index < root["runs"].size(); ++index)
    runs.push_back(described(root["runs"][index], index, file, sections));
  return runs;
}

}  // namespace accel::predict

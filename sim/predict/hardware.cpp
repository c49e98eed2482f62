#include "sim/predict/hardware.hpp"

#include <algorithm>
#include <cmath>

#include "reference/config/yaml_reader.hpp"
#include "reference/core/errors.hpp"
#include "sim/predict/input_rules.hpp"
#include "sim/predict/shipped_hardware.hpp"

namespace accel::predict {
namespace {

constexpr double kGiga = 1e9, kTera = 1e12;
constexpr double kGibi = 1024.0 * 1024.0 * 1024.0;

bool is_not_negative(double value) { return value >= 0 && std::isfinite(value); }

// Reads numbers of a mapping into places, later files over earlier ones.
class Numbers {
 public:
  /// `allows_text`: a text stands for an unknown number.
  Numbers(YamlReader& reader, YAML::Node node, bool allows_text = false)
      : reader_(reader), node_(std::move(node)), allows_text_(allows_text) {}

  [[nodiscard]] bool has(const std::string& key) const {
    if (!node_.IsMap() || !node_[key] || node_[key].IsNull()) return false;
    double number = 0;
    const bool is_text = node_[key].IsScalar() && !YAML::convert<double>::decode(node_[key], number);
    return !is_text || !allows_text_;
  }
  void positive(const std::string& key, double& place, double unit = 1) {
    read(key, place, unit, is_positive, "a positive number");
  }
  void not_negative(const std::string& key, double& place) { read(key, place, 1, is_not_negative, "0 or more"); }

 private:
  void read(const std::string& key, double& place, double unit, bool (*accepts)(double), const char* expected) {
    if (!has(key)) return;
    if (const auto value = reader_.optional<double>(key, accepts, expected)) place = *value * unit;
  }

  YamlReader& reader_;
  YAML::Node node_;
  bool allows_text_;
};

void read_gpu(YamlReader reader, const YAML::Node& node, Gpu& gpu) {
  Numbers numbers(reader, node, /*allows_text=*/true);
  if (const auto generation = reader.optional<std::string>("generation")) gpu.generation = *generation;
  numbers.positive("peak_bf16", gpu.flops_bf16, kTera);
  numbers.positive("peak_fp8", gpu.flops_fp8, kTera);
  numbers.positive("peak_fp4", gpu.flops_fp4, kTera);
  numbers.positive("memory_gb", gpu.memory_bytes, kGibi);
  numbers.positive("memory_gb_per_s", gpu.memory_bytes_per_second, kGiga);
  numbers.positive("sms", gpu.multiprocessors);
  numbers.positive("gpus_per_nvlink_domain", gpu.gpus_per_nvlink_domain);
  numbers.positive("nvlink_gb_per_s", gpu.nvlink_bytes_per_second, kGiga);
  numbers.positive("nvlink_share", gpu.nvlink_share);
  numbers.positive("matmul_share", gpu.matmul_share);
}

void read_curve(YamlReader& reader, const YAML::Node& node, const std::string& key, const std::vector<double>& sizes,
                Curve& curve) {
  if (!node[key]) return;
  const auto are_positive = [](const std::vector<double>& values) {
    return !values.empty() && std::all_of(values.begin(), values.end(), is_positive);
  };
  const auto values = reader.optional<std::vector<double>>(key, are_positive, "a list of positive numbers");
  if (!values) return;
  if (values->size() != sizes.size()) {
    reader.problem(key, "expected as many numbers as `sequence` has");
    return;
  }
  curve = {.sizes = sizes, .values = *values};
  for (auto& value : curve.values) value *= kTera;
}

struct AttentionCurves {
  Curve flash2, flash2_small_heads, flash1;
};

// Curves of one GPU of each generation serve all of it.
void read_attention(YamlReader& file, const YAML::Node& root, std::map<std::string, AttentionCurves>& curves) {
  const std::string section = "attention_forward_backward";
  if (!file.has(section)) return;
  auto reader = file.mapping(section);
  const auto is_rising = [](const std::vector<double>& sizes) {
    return !sizes.empty() && sizes.front() > 0 && std::is_sorted(sizes.begin(), sizes.end(), std::less_equal<>());
  };
  const auto sizes = reader.required<std::vector<double>>("sequence", is_rising, "rising positive numbers");
  if (sizes.empty()) return;
  const std::pair<const char*, const char*> rows[] = {{"a100_sxm4_80", "ampere"}, {"h100_sxm5_80", "hopper"}};
  for (const auto& [gpu, generation] : rows) {
    if (!reader.has(gpu)) continue;
    auto row = reader.mapping(gpu);
    const auto node = root[section][gpu];
    auto& curve = curves[generation];
    read_curve(row, node, "flash2_causal_hd128", sizes, curve.flash2);
    read_curve(row, node, "flash2_causal_hd64", sizes, curve.flash2_small_heads);
    read_curve(row, node, "flash1_causal_hd128", sizes, curve.flash1);
  }
}

void read_efficiency(YamlReader& reader, const YAML::Node& node, Efficiency& to) {
  Numbers numbers(reader, node);
  numbers.positive("memory", to.memory);
  numbers.positive("network", to.network);
  numbers.positive("cudnn_attention", to.cudnn_attention);
  numbers.positive("all_to_all_nvlink", to.all_to_all_nvlink);
  numbers.not_negative("weight_gradient_update", to.weight_gradient_update);
  numbers.positive("expert_imbalance", to.expert_imbalance);
}

void read_latencies(YamlReader& reader, const YAML::Node& node, Latencies& to) {
  Numbers numbers(reader, node);
  const std::pair<const char*, double*> keys[] = {{"kernel", &to.kernel},
                                                  {"kernel_gap", &to.kernel_gap},
                                                  {"ring_base", &to.ring_base},
                                                  {"ring_hop_nvlink", &to.ring_hop_nvlink},
                                                  {"ring_hop_network", &to.ring_hop_network},
                                                  {"tree_base", &to.tree_base},
                                                  {"tree_hop_nvlink", &to.tree_hop_nvlink},
                                                  {"tree_network", &to.tree_network},
                                                  {"tree_doubling_of_nodes", &to.tree_doubling_of_nodes},
                                                  {"message_nvlink", &to.message_nvlink},
                                                  {"message_network", &to.message_network},
                                                  {"expert_synchronization", &to.expert_synchronization},
                                                  {"step", &to.step}};
  for (const auto& [key, place] : keys) numbers.not_negative(key, *place);
}

// By generation.
using Shares = std::map<std::string, double>;
void read_shares(YamlReader& reader, const YAML::Node& node, const std::string& key, Shares& shares) {
  if (!node[key]) return;
  auto of = reader.mapping(key);
  Numbers numbers(of, node[key]);
  for (const auto& generation : of.keys()) numbers.positive(generation, shares[generation]);
}

// Blackwell has no measured curve: Hopper's, times the ratio of the peaks and 0.85.
Curve scaled(Curve curve, double factor) {
  for (auto& value : curve.values) value *= factor;
  return curve;
}

struct Parts {
  Hardware hardware;
  Shares matmul, matmul_fp8, matmul_fp4;
  std::map<std::string, AttentionCurves> attention;
};

void read_into(Parts& parts, const YAML::Node& root, YamlProblems& problems) {
  YamlReader file(root, "", problems);
  auto gpus = file.mapping("gpus");
  for (const auto& name : gpus.keys()) {
    auto& gpu = parts.hardware.gpus[name];
    gpu.name = name;
    read_gpu(gpus.mapping(name), root["gpus"][name], gpu);
  }
  if (file.has("efficiency")) {
    auto reader = file.mapping("efficiency");
    const auto node = root["efficiency"];
    read_efficiency(reader, node, parts.hardware.efficiency);
    read_shares(reader, node, "matmul", parts.matmul);
    read_shares(reader, node, "matmul_fp8", parts.matmul_fp8);
    read_shares(reader, node, "matmul_fp4", parts.matmul_fp4);
    reader.finish_keys();
  }
  if (file.has("latencies")) {
    auto reader = file.mapping("latencies");
    read_latencies(reader, root["latencies"], parts.hardware.latencies);
    reader.finish_keys();
  }
  read_attention(file, root, parts.attention);
}

void check_gpu(const Gpu& gpu, YamlReader& file) {
  const std::pair<const char*, double> needed[] = {
      {"peak_bf16", gpu.flops_bf16},
      {"memory_gb", gpu.memory_bytes},
      {"memory_gb_per_s", gpu.memory_bytes_per_second},
      {"sms", gpu.multiprocessors},
      {"nvlink_gb_per_s", gpu.nvlink_bus_bytes_per_second},
      {"generation (ampere, hopper or blackwell)", gpu.flash2.values.empty() ? 0 : gpu.matmul_share}};
  for (const auto& [key, value] : needed)
    if (!(value > 0)) file.problem("gpus", fmt::format("{}: {} is missing", gpu.name, key));
}

Hardware assembled(Parts parts, YamlReader& file) {
  const double hopper_flops = 989 * kTera;
  for (auto& [name, gpu] : parts.hardware.gpus) {
    const auto share_of = [&](const Shares& shares) {
      const auto found = shares.find(gpu.generation);
      return found == shares.end() ? 0 : found->second;
    };
    if (gpu.matmul_share == 0) gpu.matmul_share = share_of(parts.matmul);
    gpu.matmul_share_fp8 = share_of(parts.matmul_fp8);
    gpu.matmul_share_fp4 = share_of(parts.matmul_fp4);
    const bool is_blackwell = gpu.generation == "blackwell";
    const auto& curves = parts.attention[is_blackwell ? "hopper" : gpu.generation];
    const double factor = is_blackwell                 ? 0.85 * gpu.flops_bf16 / hopper_flops
                          : gpu.generation == "hopper" ? gpu.flops_bf16 / hopper_flops
                                                       : gpu.flops_bf16 / (312 * kTera);
    gpu.flash2 = scaled(curves.flash2, factor);
    gpu.flash2_small_heads = scaled(curves.flash2_small_heads, factor);
    gpu.flash1 = scaled(curves.flash1, factor);
    gpu.nvlink_bus_bytes_per_second = gpu.nvlink_bytes_per_second * gpu.nvlink_share;
    check_gpu(gpu, file);
  }
  return std::move(parts.hardware);
}

Hardware read(const std::string& user_file) {
  Parts parts;
  YamlProblems shipped_problems("hardware.yaml");
  const auto shipped = parse_yaml(kShippedHardware, "hardware.yaml", shipped_problems);
  read_into(parts, shipped, shipped_problems);
  shipped_problems.throw_if_any();
  YamlProblems problems(user_file);
  auto root = shipped;
  if (!user_file.empty()) {
    root = load_yaml(user_file, "a hardware file", problems);
    read_into(parts, root, problems);
  }
  YamlReader file(root, "", problems);
  auto hardware = assembled(std::move(parts), file);
  problems.throw_if_any();
  return hardware;
}

}  // namespace

double Curve::at(double size) const {
  if (sizes.empty()) return 0;
  if (size <= sizes.front()) return values.front() * std::pow(std::max(size, 1.0) / sizes.front(), 0.4);
  for (std::size_t index = 1; index < sizes.size(); ++index) {
    if (size > sizes[index]) continue;
    const double part = std::log(size / sizes[index - 1]) / std::log(sizes[index] / sizes[index - 1]);
    return values[index - 1] + (values[index] - values[index - 1]) * part;
  }
  return values.back();
}

const Gpu& Hardware::gpu(const std::string& name) const {
  const auto found = gpus.find(name);
  check_argument(found != gpus.end(), "gpu {}: not in the hardware file", name);
  return found->second;
}

double Gpu::rate_of(Precision precision) const {
  const double bf16 = flops_bf16 * matmul_share, fp8 = flops_fp8 * matmul_share_fp8, fp4 = flops_fp4 * matmul_share_fp4;
  if (precision == Precision::kFp4 && fp4 > 0) return fp4;
  const bool is_small = precision == Precision::kFp4 || precision == Precision::kFp8;
  return is_small && fp8 > 0 ? fp8 : bf16;
}

Hardware default_hardware() { return read(""); }
Hardware read_hardware(const std::string& file) { return read(file); }

}  // namespace accel::predict

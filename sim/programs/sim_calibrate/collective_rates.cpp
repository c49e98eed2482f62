#include "sim/programs/sim_calibrate/collective_rates.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "sim/predict/hardware.hpp"
#include "sim/programs/sim_calibrate/collective_timing.hpp"

namespace accel::programs {
namespace {

constexpr int kSizes = 5;

// Of the training steps of reports/predicted_runs.md over the best of a benchmark: 0.74 / 0.87 on A100, 0.665 / 0.80 on
// H100. Power limits and real data cause it.
constexpr double kTrainingShare = 0.84;

// Calls of one kind: what each moves over the bus of a rank, and the median of its times.
struct Calls {
  std::vector<double> bus_bytes, seconds;
};
struct GroupCalls {
  Calls all_reduce, all_gather;
};

GroupCalls measure_group(int num_ranks, c10::DeviceType device, int repeats) {
  const bool is_cpu = device == c10::DeviceType::CPU;
  std::vector<TimedCall> calls;
  for (const bool gathers : {false, true}) {
    std::int64_t bytes = is_cpu ? 1 << 16 : 1 << 20;
    for (int size = 0; size < kSizes; ++size, bytes *= 4)
      calls.push_back({.bytes = bytes / (4 * num_ranks) * (4 * num_ranks), .gathers = gathers});
  }
  const auto seconds =
      time_calls(calls, {.num_ranks = num_ranks, .repeats = repeats, .backend = is_cpu ? "gloo" : "nccl"});
  GroupCalls measured;
  for (std::size_t call = 0; call < calls.size(); ++call) {
    auto& of_kind = calls[call].gathers ? measured.all_gather : measured.all_reduce;
    const double passes = calls[call].gathers ? 1 : 2;
    of_kind.bus_bytes.push_back(static_cast<double>(calls[call].bytes) * passes * (num_ranks - 1) / num_ranks);
    of_kind.seconds.push_back(median(seconds[call]));
  }
  return measured;
}

// The slope between the two largest calls, whose latency is less than half of the largest: more is noise.
double bus_rate(const Calls& calls) {
  const auto last = calls.bus_bytes.size() - 1;
  const double average = calls.bus_bytes[last] / calls.seconds[last];
  const double rise = calls.seconds[last] - calls.seconds[last - 1];
  if (rise <= 0) return average;
  return std::clamp((calls.bus_bytes[last] - calls.bus_bytes[last - 1]) / rise, average, 2 * average);
}

// What the bytes leave of the typical call.
double latency_of(const Calls& calls, double rate) {
  std::vector<double> latencies;
  for (std::size_t call = 0; call < calls.seconds.size(); ++call)
    latencies.push_back(std::max(0.0, calls.seconds[call] - calls.bus_bytes[call] / rate));
  return median(latencies);
}

CallLatency latency_of(double of_two, double of_all, int num_ranks) {
  if (num_ranks == 2) return {.base = of_two};
  const double hop = std::max(0.0, (of_all - of_two) / (num_ranks - 2));
  if (of_two < 2 * hop) return {.base = 0, .hop = of_all / num_ranks};
  return {.base = of_two - 2 * hop, .hop = hop};
}

// Without a measured cost of a hop, the shipped one, as far as the latency of two ranks has room for it.
std::string latency_text(const char* name, const char* hop_name, const CallLatency& latency, double shipped_hop) {
  const double hop = latency.hop.value_or(std::min(shipped_hop, latency.base / 2));
  const double base = latency.hop ? latency.base : latency.base - 2 * hop;
  return fmt::format(", {}_base: {:.2e}, {}: {:.2e}", name, base, hop_name, hop);
}

}  // namespace

CollectiveRates measure_collectives(int num_ranks, c10::DeviceType device, int repeats) {
  const auto all = measure_group(num_ranks, device, repeats);
  const auto two = num_ranks == 2 ? all : measure_group(2, device, repeats);
  // Predictions have one rate for all collectives, and some all-reduces are faster than it: switches add for them.
  const double rate = std::min(bus_rate(all.all_reduce), bus_rate(all.all_gather));
  const auto latency = [&](const Calls& of_two, const Calls& of_all) {
    return latency_of(latency_of(of_two, rate), latency_of(of_all, rate), num_ranks);
  };
  return {.bus_bytes_per_second = rate,
          .all_reduce = latency(two.all_reduce, all.all_reduce),
          .all_gather = latency(two.all_gather, all.all_gather)};
}

std::string hardware_file(const std::string& gpu, const DeviceRates& rates, const CollectiveRates& collectives) {
  const auto shipped = predict::default_hardware();
  const auto& latencies = shipped.latencies;
  const bool has_collectives = collectives.bus_bytes_per_second > 0;
  auto text = fmt::format(
      "# Measured by sim-calibrate --gpu, for sim-run predict --hardware. matmul_share: of the peak, in products of a\n"
      "# training step, which reach {} of the best product. memory_gb_per_s: that of which copies reach {:.2f}.\n",
      kTrainingShare, shipped.efficiency.memory);
  if (has_collectives) {
    text +=
        "# nvlink_share: of the data sheet's rate, in large all-reduces or all-gathers, the slower ones. ring: the\n"
        "# latency of all-gathers; tree: that of all-reduces. Latencies hold for all GPUs of this file.\n";
  }
  text += fmt::format("gpus:\n  {}: {{matmul_share: {:.4g}, memory_gb_per_s: {:.0f}", gpu,
                      rates.matmul_flops_per_second * kTrainingShare / shipped.gpu(gpu).flops_bf16,
                      rates.memory_bytes_per_second / shipped.efficiency.memory / 1e9);
  if (has_collectives)
    text += fmt::format(", nvlink_share: {:.4g}",
                        collectives.bus_bytes_per_second / shipped.gpu(gpu).nvlink_bytes_per_second);
  text += fmt::format("}}\nlatencies: {{kernel: {:.2e}", std::max(0.0, rates.kernel_seconds - latencies.kernel_gap));
  if (has_collectives) {
    text += latency_text("ring", "ring_hop_nvlink", collectives.all_gather, latencies.ring_hop_nvlink) +
            latency_text("tree", "tree_hop_nvlink", collectives.all_reduce, latencies.tree_hop_nvlink);
  }
  return text + "}\n";
}

}  // namespace accel::programs

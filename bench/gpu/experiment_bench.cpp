// Trains an experiment on this rank's device and prints its speed, loss and peak memory; run_all starts it, and
// accelerate_training.py does the same for Accelerate.
#include <ATen/DeviceAccelerator.h>
#include <fmt/format.h>

#include <accel/accel.hpp>
#include <iostream>
#include <nlohmann/json.hpp>

#include "bench/timed_training.hpp"

namespace accel::bench {
namespace {

nlohmann::ordered_json peak_bytes(c10::Device device) {
  if (device.is_cpu()) return nullptr;
  const auto stats = at::accelerator::getDeviceStats(device.index());
  return stats.allocated_bytes[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)].peak;
}

int train(int argc, char** argv) {
  auto& rank = current_rank();
  const int steps = std::stoi(argv[2]);
  std::vector<std::string> overrides(argv + 3, argv + argc);
  const bool captures = std::erase(overrides, "--capture-step") > 0;
  const auto result = timed_training(rank, argv[1], steps, overrides, captures);
  if (rank.rank != 0) return 0;
  std::cout << nlohmann::ordered_json{{"ranks", rank.world_size},
                                      {"device", rank.device.str()},
                                      {"steps_per_second", steps / result.seconds},
                                      {"loss", result.loss},
                                      {"peak_bytes", peak_bytes(rank.device)}}
                   .dump()
            << std::endl;
  return 0;
}

}  // namespace
}  // namespace accel::bench

int main(int argc, char** argv) {
  if (argc >= 3) return accel::run(argc, argv, accel::bench::train);
  const bool is_help = argc == 2 && std::string_view(argv[1]) == "--help";
  fmt::print(is_help ? stdout : stderr,
             "Usage: accel launch [OPTIONS] experiment_bench FILE.yaml STEPS [--capture-step] [key.path=value ...]\n");
  return is_help ? 0 : 2;
}

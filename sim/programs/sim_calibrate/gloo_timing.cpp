#include "sim/programs/sim_calibrate/gloo_timing.hpp"

#include <ATen/ATen.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "backends/launch/local_launch.hpp"
#include "reference/core/errors.hpp"
#include "sim/programs/runtime/real_rank.hpp"

namespace accel::programs {
namespace {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr int kResultDescriptor = 3;  // of rank 0 under the launcher
constexpr int kBatches = 5;           // a repeat's time is the median of their minima

int calls_of(std::int64_t bytes) { return static_cast<int>(std::clamp<std::int64_t>((16 << 20) / bytes, 3, 20)); }

// The fastest of a few calls; a call ends when its last rank has.
double batch_minimum(const Group& group, at::Tensor& data) {
  auto seconds = at::empty({1, calls_of(data.numel() * 4)}, at::kDouble);
  for (std::int64_t call = 0; call < seconds.numel(); ++call) {
    group.barrier();
    const auto start = Clock::now();
    group.all_reduce(data).wait();
    seconds[0][call] = std::chrono::duration<double>(Clock::now() - start).count();
  }
  return std::get<0>(group.all_gather(seconds).max(0)).min().item<double>();
}

// [size][repeat]. Every batch goes through all sizes, so that a slow spell of the machine meets all of them.
std::vector<std::vector<double>> measure(const Group& group, int repeats) {
  std::vector<at::Tensor> data;
  for (const auto& size : timed_sizes()) data.push_back(at::zeros({size.bytes / 4}));
  for (auto& tensor : data) batch_minimum(group, tensor);  // connections and pages are there now
  std::vector<std::vector<double>> seconds(data.size());
  for (int repeat = 0; repeat < repeats; ++repeat) {
    std::vector<std::vector<double>> minima(data.size());
    for (int batch = 0; batch < kBatches; ++batch) {
      for (std::size_t size = 0; size < data.size(); ++size) minima[size].push_back(batch_minimum(group, data[size]));
    }
    for (std::size_t size = 0; size < data.size(); ++size) seconds[size].push_back(median(minima[size]));
  }
  return seconds;
}

}  // namespace

std::vector<TimedSize> timed_sizes() {
  std::vector<TimedSize> all = {{4, true}};
  bool is_fitted = true;
  for (std::int64_t bytes = 1 << 10; bytes <= 16 << 20; bytes *= 2, is_fitted = !is_fitted)
    all.push_back({bytes, is_fitted});
  return all;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : 0.5 * (values[middle - 1] + values[middle]);
}

void time_as_worker(int repeats) {
  auto context = make_real_rank("gloo");
  try {
    const auto seconds = measure(context->world, repeats);
    if (context->rank == 0) {
      const auto text = Json(seconds).dump();
      check_config(write(kResultDescriptor, text.data(), text.size()) == static_cast<ssize_t>(text.size()),
                   "--worker: nobody reads the result");
    }
    context->world.barrier();
  } catch (...) {
    keep_until_exit(std::move(context));
    throw;
  }
}

std::vector<std::vector<double>> time_processes(int num_ranks, int repeats) {
  const int result = memfd_create("sim-calibrate", MFD_CLOEXEC);
  check_config(result >= 0, "memfd_create: no memory for the results");
  launcher::LocalLaunchOptions options{.num_processes = num_ranks, .progress_fd = result};
  options.command = {std::filesystem::read_symlink("/proc/self/exe").string(), "--worker", "--repeats",
                     std::to_string(repeats)};
  const auto launched = launcher::launch_local(options);
  if (launched.exit_code != 0) throw Error(launched.message);
  std::string text(lseek(result, 0, SEEK_END), '\0');
  check_config(pread(result, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()),
               "the results cannot be read");
  close(result);
  return Json::parse(text);
}

}  // namespace accel::programs

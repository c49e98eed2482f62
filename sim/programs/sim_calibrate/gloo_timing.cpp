// Times all-reduces of real Gloo processes. The program starts itself once per rank as `--worker`; rank 0 writes the
// times into an anonymous file that it inherits, because standard output belongs to the user.
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
#include "sim/programs/entry/real_rank.hpp"

namespace accel::programs {
namespace {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr int kResultDescriptor = 3;  // where the launcher passes `progress_fd` to rank 0
constexpr int kBatches = 5;           // the time of a repeat is the median of their minima

// Small messages take microseconds and need more calls for a stable minimum; large ones are steady but slow.
int calls_of(std::int64_t bytes) { return static_cast<int>(std::clamp<std::int64_t>((16 << 20) / bytes, 3, 20)); }

// Returns the fastest of a few calls. A call ends when its last rank ends, hence the maximum over ranks. The minimum
// over calls drops interruptions by other processes, which only ever add time.
double fastest_call(const Group& group, at::Tensor& data) {
  auto seconds = at::empty({1, calls_of(data.numel() * 4)}, at::kDouble);
  for (std::int64_t call = 0; call < seconds.numel(); ++call) {
    group.barrier();
    const auto start = Clock::now();
    group.all_reduce(data).wait();
    seconds[0][call] = std::chrono::duration<double>(Clock::now() - start).count();
  }
  return std::get<0>(group.all_gather(seconds).max(0)).min().item<double>();
}

// Returns [size][repeat]. Every batch goes through all sizes, so that a slow phase of the machine affects all sizes
// alike instead of bending the fitted curve at one of them.
std::vector<std::vector<double>> measure(const Group& group, int repeats) {
  std::vector<at::Tensor> data;
  for (const auto& size : timed_sizes()) data.push_back(at::zeros({size.bytes / 4}));
  for (auto& tensor : data) fastest_call(group, tensor);  // warm-up: opens connections and touches pages
  std::vector<std::vector<double>> seconds(data.size());
  for (int repeat = 0; repeat < repeats; ++repeat) {
    std::vector<std::vector<double>> minima(data.size());
    for (int batch = 0; batch < kBatches; ++batch) {
      for (std::size_t size = 0; size < data.size(); ++size) minima[size].push_back(fastest_call(group, data[size]));
    }
    for (std::size_t size = 0; size < data.size(); ++size) seconds[size].push_back(median(minima[size]));
  }
  return seconds;
}

}  // namespace

// Fitted and held-out sizes alternate, so that the held-out ones test interpolation, which is what the model is used
// for.
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

void run_timing_worker(int repeats) {
  auto context = make_real_rank("gloo");
  try {
    const auto seconds = measure(context->world, repeats);
    if (context->rank == 0) {
      const auto text = Json(seconds).dump();
      check_config(write(kResultDescriptor, text.data(), text.size()) == static_cast<ssize_t>(text.size()),
                   "--worker: cannot write the result to descriptor {}; start sim-calibrate without --worker",
                   kResultDescriptor);
    }
    // Ranks leave together: the first to close its connections would make others fail.
    context->world.barrier();
  } catch (...) {
    keep_until_exit(std::move(context));
    throw;
  }
}

std::vector<std::vector<double>> time_all_reduces(int num_ranks, int repeats) {
  // Close-on-exec keeps the descriptor from leaking into all ranks; the launcher passes it to rank 0 explicitly.
  const int result = memfd_create("sim-calibrate", MFD_CLOEXEC);
  check_config(result >= 0, "memfd_create: cannot create a file in memory for the results");
  launcher::LocalLaunchOptions options{.num_processes = num_ranks, .progress_fd = result};
  options.command = {std::filesystem::read_symlink("/proc/self/exe").string(), "--worker", "--repeats",
                     std::to_string(repeats)};
  const auto launched = launcher::launch_local(options);
  if (launched.exit_code != 0) throw Error(launched.message);
  std::string text(lseek(result, 0, SEEK_END), '\0');
  check_config(pread(result, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()),
               "cannot read the results of the processes");
  close(result);
  return Json::parse(text);
}

}  // namespace accel::programs

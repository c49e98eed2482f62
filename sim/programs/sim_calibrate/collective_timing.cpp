// The program starts itself once per rank as `--worker`; rank 0 writes the times into an anonymous file that it
// inherits, because standard output belongs to the user.
#include "sim/programs/sim_calibrate/collective_timing.hpp"

#include <ATen/ATen.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "backends/launch/local_launch.hpp"
#include "reference/core/device.hpp"
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

// A call with its tensors, on the device of the rank.
struct PreparedCall {
  PreparedCall(const TimedCall& call, const RankContext& rank) : gathers(call.gathers) {
    const auto options = at::TensorOptions(rank.device).dtype(at::kFloat);
    result = at::zeros({call.bytes / 4}, options);
    if (gathers) part = at::zeros({call.bytes / 4 / rank.world.size()}, options);
  }

  bool gathers;
  at::Tensor result, part;
};

// Returns the fastest of a few calls. A call ends when its last rank ends, hence the maximum over ranks. The minimum
// over calls drops interruptions by other processes, which only ever add time.
double fastest_call(const RankContext& rank, PreparedCall& call) {
  const auto& group = rank.world;
  auto seconds = at::empty({1, calls_of(call.result.numel() * 4)}, at::kDouble);
  for (std::int64_t index = 0; index < seconds.numel(); ++index) {
    group.barrier();
    wait_for(rank.device);
    const auto start = Clock::now();
    if (call.gathers)
      group.all_gather_into(call.result, call.part).wait();
    else
      group.all_reduce(call.result).wait();
    wait_for(rank.device);
    seconds[0][index] = std::chrono::duration<double>(Clock::now() - start).count();
  }
  return std::get<0>(group.all_gather(seconds.to(rank.device)).max(0)).min().item<double>();
}

// Returns [call][repeat]. Every batch goes through all calls, so that a slow phase of the machine affects all alike
// instead of bending the fitted curve at one of them.
std::vector<std::vector<double>> measure(const RankContext& rank, const std::vector<TimedCall>& calls, int repeats) {
  std::vector<PreparedCall> prepared;
  for (const auto& call : calls) prepared.emplace_back(call, rank);
  for (auto& call : prepared) fastest_call(rank, call);  // warm-up: opens connections and touches pages
  std::vector<std::vector<double>> seconds(calls.size());
  for (int repeat = 0; repeat < repeats; ++repeat) {
    std::vector<std::vector<double>> minima(calls.size());
    for (int batch = 0; batch < kBatches; ++batch) {
      for (std::size_t call = 0; call < calls.size(); ++call)
        minima[call].push_back(fastest_call(rank, prepared[call]));
    }
    for (std::size_t call = 0; call < calls.size(); ++call) seconds[call].push_back(median(minima[call]));
  }
  return seconds;
}

std::string text_of(const std::vector<TimedCall>& calls) {
  auto json = Json::array();
  for (const auto& call : calls) json.push_back({call.bytes, call.gathers});
  return json.dump();
}

std::vector<TimedCall> calls_of_text(const std::string& text) {
  const auto json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  check_config(json.is_array(), "--worker: expected the calls that sim-calibrate passes, got '{}'", text);
  std::vector<TimedCall> calls;
  for (const auto& call : json) calls.push_back({call.at(0), call.at(1)});
  return calls;
}

}  // namespace

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : 0.5 * (values[middle - 1] + values[middle]);
}

void run_timing_worker(const std::string& calls, const std::string& backend, int repeats) {
  const auto timed = calls_of_text(calls);
  auto context = make_real_rank(backend);
  try {
    const auto seconds = measure(*context, timed, repeats);
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

std::vector<std::vector<double>> time_calls(const std::vector<TimedCall>& calls, const TimingOptions& options) {
  // Close-on-exec keeps the descriptor from leaking into all ranks; the launcher passes it to rank 0 explicitly.
  const int result = memfd_create("sim-calibrate", MFD_CLOEXEC);
  check_config(result >= 0, "memfd_create: cannot create a file in memory for the results");
  launcher::LocalLaunchOptions launch{.num_processes = options.num_ranks, .progress_fd = result};
  launch.command = {std::filesystem::read_symlink("/proc/self/exe").string(),
                    "--worker",
                    text_of(calls),
                    "--backend",
                    options.backend,
                    "--repeats",
                    std::to_string(options.repeats)};
  const auto launched = launcher::launch_local(launch);
  if (launched.exit_code != 0) throw Error(launched.message);
  std::string text(lseek(result, 0, SEEK_END), '\0');
  check_config(pread(result, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()),
               "cannot read the results of the processes");
  close(result);
  return Json::parse(text);
}

}  // namespace accel::programs

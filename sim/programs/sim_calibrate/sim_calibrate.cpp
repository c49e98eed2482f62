// sim-calibrate: measures all-reduces of real Gloo processes on this machine, fits the costs of a network to some of
// them, reports how well the fit predicts the others, and writes a network file. With --gpu it measures a GPU, and the
// collectives between GPUs, for a hardware file.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/Device.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <iostream>
#include <regex>
#include <thread>

#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/core/system/resource_limits.hpp"
#include "reference/rank_local/exit_point.hpp"
#include "sim/network/all_reduce_fit.hpp"
#include "sim/predict/hardware.hpp"
#include "sim/programs/command_line/command_line.hpp"
#include "sim/programs/rehearsal/exit_code.hpp"
#include "sim/programs/rehearsal/output_files.hpp"
#include "sim/programs/sim_calibrate/collective_rates.hpp"
#include "sim/programs/sim_calibrate/collective_timing.hpp"
#include "sim/programs/sim_calibrate/device_timing.hpp"

namespace accel::programs {
namespace {

// A prediction counts as good within this relative error, or within the noise of the measurement if that is larger.
constexpr double kErrorTolerance = 0.05;

struct Arguments {
  std::string out;
  int repeats = 5;
  std::vector<int> oversubscribed;
  std::string gpu, device = "cuda";
  std::optional<int> ranks;             // with --gpu
  std::string calls, backend = "gloo";  // of a worker
};

// --- the measurements of all group sizes -----------------------------------------------------------------------------

struct Measured {
  int num_ranks = 0;
  std::int64_t bytes = 0;
  bool is_fitted = false;       // whether both its size and its number of ranks are fitted; else held out
  std::vector<double> seconds;  // one per repeat

  [[nodiscard]] double typical() const { return median(seconds); }
  // The median relative difference over all pairs of repeats: the noise that no model can predict.
  [[nodiscard]] double spread() const {
    std::vector<double> differences;
    for (std::size_t one = 0; one < seconds.size(); ++one) {
      for (std::size_t other = 0; other < one; ++other)
        differences.push_back(std::abs(seconds[one] - seconds[other]) / typical());
    }
    return median(differences);
  }
  [[nodiscard]] double error(const sim::AllReduceCosts& costs) const {
    return std::abs(sim::all_reduce_seconds(costs, num_ranks, bytes) / typical() - 1);
  }
};

struct TimedSize {
  std::int64_t bytes = 0;
  bool is_fitted = false;  // else held out, to judge the fit
};

// Sizes from 4 bytes to 16 MiB. From 1 KiB the fitted ones are a factor of 4 apart, with the held-out ones between
// them: the model is used to interpolate.
std::vector<TimedSize> timed_sizes() {
  std::vector<TimedSize> all = {{4, true}};
  bool is_fitted = true;
  for (std::int64_t bytes = 1 << 10; bytes <= 16 << 20; bytes *= 2, is_fitted = !is_fitted)
    all.push_back({bytes, is_fitted});
  return all;
}

// Progress goes to standard error: the table on standard output can be redirected.
std::vector<Measured> measure_group(int num_ranks, bool fits, int repeats) {
  std::cerr << fmt::format("measuring {} processes ...", num_ranks) << std::endl;
  const auto sizes = timed_sizes();
  std::vector<TimedCall> calls;
  for (const auto& size : sizes) calls.push_back({.bytes = size.bytes});
  const auto seconds = time_calls(calls, {.num_ranks = num_ranks, .repeats = repeats});
  std::vector<Measured> all;
  for (std::size_t index = 0; index < sizes.size(); ++index)
    all.push_back({num_ranks, sizes[index].bytes, fits && sizes[index].is_fitted, seconds[index]});
  return all;
}

// Fits 2 ranks and the number of cores, the extremes, and holds out numbers in between, so that the verdict
// tests interpolation. More ranks than cores would measure the operating system's scheduler.
struct Groups {
  std::vector<int> fitted, held_out;
};

Groups groups_of(int cores) {
  Groups groups{.fitted = {2}};
  if (cores > 2) groups.fitted.push_back(cores);
  for (int ranks = 3; ranks < cores; ranks = ranks < 4 ? 4 : ranks * 2) groups.held_out.push_back(ranks);
  return groups;
}

// --- the report and the network file ---------------------------------------------------------------------------------

// Measurements beyond the number of cores are printed, but are not used for the fit or the verdict.
void print_table(const std::vector<Measured>& all, const sim::AllReduceCosts& costs, int cores) {
  fmt::print("{:>5} {:>10} {:>12} {:>12} {:>8} {:>8}\n", "ranks", "bytes", "measured us", "model us", "error",
             "spread");
  for (const auto& one : all) {
    const auto* role = one.num_ranks > cores ? "not counted" : one.is_fitted ? "fitted" : "held out";
    fmt::print("{:>5} {:>10} {:>12.1f} {:>12.1f} {:>7.1f}% {:>7.1f}%  {}\n", one.num_ranks, one.bytes,
               one.typical() * 1e6, sim::all_reduce_seconds(costs, one.num_ranks, one.bytes) * 1e6,
               one.error(costs) * 100, one.spread() * 100, role);
  }
}

// A fit cannot be better than the noise of the measurement, so an error within the spread counts as a success.
struct Verdict {
  double error = 0, spread = 0;  // medians over what was held out
  int count = 0;
  [[nodiscard]] bool holds() const { return error <= std::max(kErrorTolerance, spread); }
};

// Medians, because a single disturbed measurement must not decide the verdict.
Verdict judge(const std::vector<Measured>& all, const sim::AllReduceCosts& costs) {
  std::vector<double> errors, spreads;
  for (const auto& one : all) {
    if (one.is_fitted) continue;
    errors.push_back(one.error(costs));
    spreads.push_back(one.spread());
  }
  return {.error = median(errors), .spread = median(spreads), .count = static_cast<int>(errors.size())};
}

std::string verdict_text(const Verdict& verdict, int repeats) {
  return fmt::format("{} held-out times: median error {:.1f} %, median spread of {} repeats {:.1f} %: {}",
                     verdict.count, verdict.error * 100, repeats, verdict.spread * 100,
                     verdict.holds() ? "within max(5 %, spread)" : "not within max(5 %, spread)");
}

std::string size_factors_text(const std::vector<sim::SizeFactor>& factors) {
  std::string text;
  for (const auto& [bytes, factor] : factors) text += fmt::format("  - {{bytes: {}, factor: {:.3f}}}\n", bytes, factor);
  return text;
}

// In a single-quoted YAML scalar only the quote itself needs escaping, by doubling it.
std::string yaml_quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char letter : text) quoted += letter == '\'' ? "''" : std::string(1, letter);
  return quoted + "'";
}

// Writes the machine as a switch: every path has two links, so each gets half of the latency. As many messages as cores
// were measured at once, so the switch carries that many at full rate; that more of them share it is an assumption.
std::string network_file(const std::string& name, const sim::AllReduceCosts& costs, int cores,
                         const std::string& verdict) {
  return fmt::format(
      "# Gloo over the loopback interface, as sim-calibrate measured it with up to {} processes on {} cores.\n# "
      "{}\nname: "
      "{}\nlibrary: gloo\n"
      "overhead_seconds: {:.4e}\nreduce_seconds_per_byte: {:.4e}\nsize_factors:\n{}topology: {{kind: switch, "
      "latency_seconds: "
      "{:.4e}, bytes_per_second: {:.4e}, core_bytes_per_second: {:.4e}}}\n"
      "compute: {{kind: cpu_time}}\n",
      cores, cores, verdict, name, costs.overhead_seconds, costs.reduce_seconds_per_byte,
      size_factors_text(costs.size_factors), 0.5 * costs.latency_seconds, 1 / costs.seconds_per_byte,
      cores / costs.seconds_per_byte);
}

// Fits before judging, and writes the verdict into the file, so that a user of the file sees how far to trust it.
int calibrate(const Arguments& arguments) {
  const int cores = std::max(2U, std::thread::hardware_concurrency());
  const auto groups = groups_of(cores);
  std::vector<Measured> all;
  const auto add = [&](const std::vector<int>& counts, bool fits) {
    for (const int ranks : counts) {
      for (auto& one : measure_group(ranks, fits, arguments.repeats)) all.push_back(std::move(one));
    }
  };
  add(groups.fitted, /*fits=*/true);
  add(groups.held_out, /*fits=*/false);
  std::vector<sim::MeasuredAllReduce> fitted;
  for (const auto& one : all) {
    if (one.is_fitted) fitted.push_back({one.num_ranks, one.bytes, one.typical()});
  }
  const auto costs = sim::fit_all_reduce(fitted);
  print_table(all, costs, cores);
  const auto verdict = verdict_text(judge(all, costs), arguments.repeats);
  fmt::print("overhead {:.3g} s, latency {:.3g} s, {:.3g} s per byte, {:.3g} s per reduced byte\n{}\n",
             costs.overhead_seconds, costs.latency_seconds, costs.seconds_per_byte, costs.reduce_seconds_per_byte,
             verdict);
  if (groups.held_out.empty())
    fmt::print("no number of ranks was held out: that needs at least 4 cores, but this machine has {}\n", cores);
  if (!arguments.out.empty()) {
    write_text(arguments.out,
               network_file(yaml_quoted(std::filesystem::path(arguments.out).stem().string()), costs, cores, verdict));
  }
  // Comes last: it takes longest, and the file and the verdict do not depend on it.
  for (const int ranks : arguments.oversubscribed) {
    fmt::print(
        "{} ranks on {} cores, oversubscribed: the times include the operating system's scheduler and do not count\n",
        ranks, cores);
    print_table(measure_group(ranks, /*fits=*/false, arguments.repeats), costs, cores);
  }
  return kSuccess;
}

int calibrate_gpu(const Arguments& arguments) {
  const c10::Device device(arguments.device);
  check_config(device.is_cpu() || at::detail::getCUDAHooks().deviceCount() > 0,
               "--gpu: CUDA finds no GPU on this machine; check the driver and CUDA_VISIBLE_DEVICES");
  std::vector<std::string> names;
  for (const auto& [name, gpu] : predict::default_hardware().gpus) names.push_back(name);
  check_config(std::find(names.begin(), names.end(), arguments.gpu) != names.end(), "--gpu {}: expected one of {}",
               arguments.gpu, listed(names, ", "));
  const int num_gpus = at::detail::getCUDAHooks().deviceCount();
  check_config(device.is_cpu() || arguments.ranks.value_or(1) <= num_gpus,
               "--ranks {}: expected at most {}, the GPUs that CUDA finds on this machine", arguments.ranks.value_or(1),
               num_gpus);
  check_config(!arguments.ranks || !device.has_index(),
               "--device {}: --ranks measures GPUs 0 to {}; leave out the index", arguments.device,
               arguments.ranks.value_or(1) - 1);
  std::cerr << fmt::format("measuring {} ...", device.str()) << std::endl;
  const auto rates = measure_device(device);
  CollectiveRates collectives;
  if (arguments.ranks) {
    std::cerr << fmt::format("measuring collectives of {} ranks ...", *arguments.ranks) << std::endl;
    collectives = measure_collectives(*arguments.ranks, device.type(), arguments.repeats);
  }
  const auto file = hardware_file(arguments.gpu, rates, collectives);
  if (arguments.out.empty())
    std::cout << file << std::flush;
  else
    write_text(arguments.out, file);
  return kSuccess;
}

int run_main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app(
      "Measures Gloo all-reduces among processes of this machine, and fits the costs of a network file to them; or, "
      "with --gpu, what one GPU reaches, and with --ranks what NCCL reaches between GPUs, for a hardware file of "
      "sim-run predict.",
      "sim-calibrate");
  app.add_option("--out", arguments.out, "Write the network file, or the hardware file, here");
  auto* const gpu =
      app.add_option("--gpu", arguments.gpu, "Measure one GPU, of this name in hardware.yaml, such as h100_sxm5_80");
  app.add_option("--ranks", arguments.ranks,
                 "With --gpu: also measure NCCL's collectives among this many GPUs of this machine (Gloo's for a CPU)")
      ->check(CLI::Range(2, 64))
      ->needs(gpu);
  app.add_option("--device", arguments.device, "With --gpu: cuda, cuda:1, or cpu to try the command")
      ->check([](const std::string& text) {
        static const std::regex kDevice("cuda(:[0-9]{1,2})?|cpu");
        return std::regex_match(text, kDevice) ? std::string() : "expected cuda, cuda:N or cpu, got '" + text + "'";
      })
      ->capture_default_str();
  app.add_option("--repeats", arguments.repeats, "Number of measurements; their spread is the noise")
      ->check(CLI::Range(2, 100))
      ->capture_default_str();
  app.add_option("--oversubscribed", arguments.oversubscribed,
                 "Also measure this many processes, more than there are cores; shown but not counted; repeatable")
      ->check(CLI::Range(2, 256));
  app.add_option("--worker", arguments.calls)->group("");
  app.add_option("--backend", arguments.backend)->group("");
  try {
    if (const auto code = parse_command_line(app, argc, argv)) return *code;
    const auto problem = problem_of_output(arguments.out);
    check_config(problem.empty(), "--out: {}", problem);
    if (!arguments.gpu.empty()) return calibrate_gpu(arguments);
    if (arguments.calls.empty()) return calibrate(arguments);
    run_timing_worker(arguments.calls, arguments.backend, arguments.repeats);
    return kSuccess;
  } catch (const std::exception& error) {
    std::cerr << "sim-calibrate: " << message_of(error) << std::endl;
    return exit_code_of(error);
  }
}

}  // namespace
}  // namespace accel::programs

int main(int argc, char** argv) {
  // An ignored SIGCHLD is inherited from the parent, and the kernel then discards exit codes before waitpid sees them.
  std::signal(SIGCHLD, SIG_DFL);
  accel::end_process(accel::programs::run_main(argc, argv));
}

// Measures a training on 8 Gloo ranks of which one dies in the middle: by accelerator.elastic, with whose undisturbed
// run it is compared, and by a restart of all ranks from the newest checkpoint.
#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "bench/printed_json.hpp"
#include "bench/program.hpp"
#include "reference/files/temporary_folder.hpp"

namespace accel::bench {
namespace {

// Seconds from the first step to the end of the last one. `kill_after` in seconds; 0: nobody dies.
double seconds_of_training(const std::string& mode, int steps, double kill_after) {
  const auto programs = std::filesystem::read_symlink("/proc/self/exe").parent_path().string();
  const TemporaryFolder folder;
  return printed_json(fmt::format("{0}/accel launch --cpu --num_processes 8 --max_restarts {1} --main_process_port 0 "
                                  "--no_prefix {0}/survived_training {2} {3} {4} {5}",
                                  programs, mode == "restart" ? 1 : 0, mode, steps, kill_after, folder.path()))
      .at("seconds")
      .get<double>();
}

Rows all_rows(int steps, double kill_after) {
  const auto row = [=](const std::string& name, const std::string& mode, double after, const std::string& beside) {
    return Row{.name = "training/" + name,
               .measure = [=] { return seconds_of_training(mode, steps, after); },
               .beside = beside};
  };
  return {row("elastic/undisturbed", "elastic", 0, ""),
          row("elastic/one_death", "elastic", kill_after, "training/elastic/undisturbed"),
          row("restart/undisturbed", "restart", 0, "training/elastic/undisturbed"),
          row("restart/one_death", "restart", kill_after, "training/elastic/undisturbed")};
}

}  // namespace
}  // namespace accel::bench

int main(int argc, char** argv) {
  accel::bench::Program program(
      "elastic_bench",
      "Measures a training on 8 Gloo ranks of which one dies in the middle, beside one that is "
      "undisturbed and one whose ranks are all restarted from a checkpoint.");
  int steps = 600, kill_after = 30;
  program.add("--steps", steps, "Steps of the training, which should take about a minute");
  program.add("--kill-after", kill_after, "Seconds after which a rank dies");
  return program.run(argc, argv, [&] { return accel::bench::all_rows(steps, kill_after); });
}

// Sample reports for the tests of the page. All numbers come from formulas, so pages are the same everywhere.
#include "tests/sim/report/sample_reports.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>

namespace accel::testing {
namespace {

using sim::RunReport;

// Returns noise that is the same on every machine: the fractional parts of multiples of the golden ratio.
double noise(std::size_t index) { return std::fmod(static_cast<double>(index) * 0.6180339887498949, 1.0) - 0.5; }

// A loss curve with noise, as trainings have it.
std::vector<double> falling_losses(int num_steps) {
  std::vector<double> losses;
  for (int step = 0; step < num_steps; ++step)
    losses.push_back(0.35 + 2.0 * std::exp(-6.0 * step / num_steps) + 0.16 * noise(static_cast<std::size_t>(step)));
  return losses;
}

// One rank computes 1.7 times as long, so all others wait for it.
std::vector<sim::StepBreakdown> ranks_with_one_slow(int num_ranks) {
  constexpr double kCommunication = 0.0043, kSlow = 0.0212;
  std::vector<sim::StepBreakdown> ranks;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const auto compute = rank == num_ranks / 3 ? kSlow : 0.0125 + 0.0018 * noise(static_cast<std::size_t>(rank));
    ranks.push_back({compute, kCommunication, kSlow - compute});
  }
  return ranks;
}

std::vector<sim::ScalePoint> sweep() {
  std::vector<sim::ScalePoint> points;
  for (int ranks = 1; ranks <= 1024; ranks *= 2) {
    const auto exposed = ranks == 1 ? 0 : 0.0009 * std::log2(ranks),
               waiting = ranks == 1 ? 0 : 0.0004 * std::log2(ranks);
    const auto step = 0.0125 + exposed + waiting;
    points.push_back({ranks, step, 0.0125 / step, exposed, waiting, 32 * ranks / step});
  }
  return points;
}

}  // namespace

// A report in which every section has content.
RunReport full_report(int num_ranks, int num_steps) {
  RunReport report{.title = fmt::format("fashion_mnist on {} simulated ranks", num_ranks)};
  report.facts = {
      {"ranks", std::to_string(num_ranks)},
      {"backend", "sim"},
      {"schedule", "parallel, seed 0"},
      {"network", "two-level: 300 GB/s, 25 GB/s"},
      {"steps", std::to_string(num_steps)},
      {"seed", "42"},
      {"command", fmt::format("sim-run --ranks {} --network cluster.yaml --clock virtual --timeline timeline.json "
                              "--report report fashion_mnist.yaml",
                              num_ranks)}};
  report.losses = falling_losses(num_steps);
  report.ranks = ranks_with_one_slow(num_ranks);
  report.volumes = {{"broadcast", 6, 407080, 0.0021},
                    {"all_reduce", 2 * num_steps, std::int64_t{407080} * num_steps * num_ranks, 0.0043 * num_steps},
                    {"all_gather", 40, 1310720, 0.031},
                    {"barrier", 2, 0, 0.0004}};
  report.memory = {{"parameters", 2'000'000},  {"gradients", 2'000'000}, {"optimizer", 4'000'000},
                   {"activations", 3'100'000}, {"gathered", 0},          {"buckets", 2'000'000}};
  report.scaling = sweep();
  report.faults = {fmt::format("slow_rank: rank {} computes 1.7 times as long, from step 0", num_ranks / 3)};
  report.findings = {fmt::format("rank {} is a straggler: the others wait for it in every step", num_ranks / 3),
                     "bucket 1 of 2 is sent when backward has ended: 4.3 ms of every step are exposed"};
  report.timeline_file = "timeline.json";
  return report;
}

// A run whose loss grows until it is no longer finite.
RunReport diverged_report() {
  auto report = full_report(8, 120);
  report.title = "fashion_mnist, learning rate 10";
  for (std::size_t step = 0; step < report.losses.size(); ++step) {
    report.losses[step] = step >= 60 || step == 40 ? std::numeric_limits<double>::quiet_NaN()
                                                   : 2.3 * std::exp(0.2 * static_cast<double>(step));
  }
  report.losses[59] = std::numeric_limits<double>::infinity();
  report.scaling.clear();
  report.faults.clear();
  report.findings = {"the loss of rank 0 is not finite from step 59 on"};
  return report;
}

// A run that ended in a hang after five steps, so it has no times and no scaling.
RunReport hung_report() {
  RunReport report{.title = "train on 4 simulated ranks", .facts = {{"ranks", "4"}, {"seed", "7"}}};
  report.losses = {2.31, 2.12, 1.94, 1.71, 1.66};
  report.faults = {"rank_hang: rank 2 stops before collective 17"};
  report.diagnosis =
      "hang: every rank is blocked or has ended; none can continue\n"
      "  all_reduce #17 of group world, all_reduce(sum, float32 [64, 10]): 3 of 4 ranks arrived (ranks 0-1, 3)\n"
      "  missing: rank 2 has ended its program, after all_reduce #16 of group world";
  return report;
}

// A report that consists of a sweep over numbers of ranks only.
RunReport sweep_report() {
  return {.title = "mlp, 1 to 1,024 ranks", .facts = {{"batch size", "32 a rank"}}, .scaling = sweep()};
}

// Characters and tags that have a meaning in HTML, and a non-ASCII letter.
RunReport hostile_report() {
  const std::string text =
      "</title></pre><script>console.error('run')</script><img src=x onerror=alert(1)> \"quoted\" & 'more' &amp; "
      "\xc3\xa9";
  RunReport report{.title = text,
                   .facts = {{text, text}},
                   .losses = {1},
                   .volumes = {{text, 1, 1, 1}},
                   .faults = {text},
                   .findings = {text},
                   .diagnosis = text};
  report.timeline_file = text;
  return report;
}

sim::ComparisonReport equal_runs() {
  return {.title = "train on sim and gloo",
          .name_of_a = "a (sim)",
          .name_of_b = "b (gloo)",
          .facts = {{"ranks", "2"}, {"compared", "steps"}, {"program", "build/bin/train --epochs 2 --batch-size 64"}},
          .ranks = {{.observations = 96, .equal = 96}, {.observations = 96, .equal = 96}},
          .losses = {2.31, 1.87, 1.52, 1.2}};
}

sim::ComparisonReport different_runs() {
  auto report = equal_runs();
  report.difference =
      "rank 1, step 2: the output of module body.1 differs: Float [4, 8], norm 2.29174532 on a (sim); Float [4, 8], "
      "norm 2.81432109 on b (gloo)";
  report.around = {{.step = 2,
                    .what = "the output of module body.0",
                    .a = "Float [4, 8], norm 2.29174532",
                    .b = "Float [4, 8], norm 2.29174532"},
                   {.step = 2,
                    .what = "the output of module body.1",
                    .a = "Float [4, 8], norm 2.29174532",
                    .b = "Float [4, 8], norm 2.81432109"}};
  report.ranks = {{.observations = 96, .equal = 50, .difference = "step 2: parameter first.weight"},
                  {.observations = 96, .equal = 41, .difference = "step 2: the output of module body.1"}};
  return report;
}

sim::CheckReport failed_checks() {
  sim::CheckReport report{.title = "python train.py on 3 ranks"};
  report.facts = {{"command", "sim-run check --ranks 3 -- python train.py"}};
  report.checks = {
      {.name = "samples",
       .question = "Do the ranks read every sample once?",
       .verdict = sim::CheckVerdict::kFail,
       .seconds = 3.5,
       .text = "every rank reads all 6 samples of the loader at train.py:12",
       .where = "train.py:12",
       .replay = "sim-run check --only samples -- python train.py",
       .samples =
           sim::ReadSamples{.loader = "train.py:12", .size = 7, .by_rank = {{0, 1, 2, 3, 4}, {5, 1, 2}, {2, 2}}}},
      {.name = "calls",
       .question = "Do all ranks make the same calls?",
       .verdict = sim::CheckVerdict::kFail,
       .seconds = 0.5,
       .text = "all_reduce #3: the calls differ",
       .run_page = "calls/index.html",
       .timeline = "calls/timeline.pftrace"},
      {.name = "world_size",
       .question = "Do N ranks compute what one rank computes?",
       .verdict = sim::CheckVerdict::kFinding,
       .text = "the learning rate follows the number of ranks",
       .quantities = {{.what = "loss", .ours = "0.7", .one = "0.7"},
                      {.update = 1, .what = "learning rate", .ours = "1.25e-02", .one = "5e-02"}}},
      {.name = "files", .question = "Does one rank write each file?", .text = "no file is written"},
      {.name = "resume",
       .question = "Does it continue?",
       .verdict = sim::CheckVerdict::kNotApplicable,
       .text = "the program writes nothing"}};
  return report;
}

}  // namespace accel::testing

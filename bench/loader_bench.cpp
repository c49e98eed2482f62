// Measures the loader alone: how fast it reads, and how fast it resumes inside an epoch.
//
//   loader_bench [--out FILE.json] [--rounds N] [--data-dir DIR] [--python COMMAND]
//
// read     samples per second of a prepared DataLoader over Fashion-MNIST: batch 32, shuffled, one rank, full epochs.
//          With --python, COMMAND (bench/torch_loader.py) measures Python's torch DataLoader in the same run
// resume   the time from a saved position after 500,000 batches of 32 of a map-style dataset to the next batch,
// compared
//          with one torch::randperm of the dataset's size
#include <torch/types.h>

#include <accel/accel.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench/median.hpp"
#include "bench/program.hpp"
#include "sim/programs/experiments/small_images.hpp"

namespace {

using accel::bench::Json;
using accel::bench::median;

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kBatch = 32;
constexpr std::int64_t kSkippedBatches = 500'000;
constexpr std::int64_t kSetSize = kSkippedBatches * kBatch + 100 * kBatch;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

template <typename Measure>
double median_of(int rounds, const Measure& measure) {
  measure();  // warm-up
  std::vector<double> values;
  for (int round = 0; round < rounds; ++round) values.push_back(measure());
  return median(values);
}

// --- read ------------------------------------------------------------------------------------------------------------

// One complete epoch, from the first to the last batch; starting the workers counts.
double samples_per_second(const accel::programs::LabelledImages& data, int workers) {
  accel::Accelerator accelerator;
  auto batches = accelerator.prepare(accel::DataLoader(
      accel::TensorDataset(data.images, data.labels), {.batch_size = kBatch, .shuffle = true, .num_workers = workers}));
  std::int64_t samples = 0;
  const auto start = Clock::now();
  for (auto& [images, labels] : batches) samples += labels.size(0);
  return static_cast<double>(samples) / seconds_since(start);
}

// Runs the command, which prints the rates of Python's loader: [{"dataset", "workers", "samples_per_second"}].
Json ask_python(const std::string& command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  std::string text;
  char piece[4096];
  while (pipe && std::fgets(piece, sizeof piece, pipe.get()) != nullptr) text += piece;
  auto rows = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!rows.is_array() || rows.empty())
    throw accel::Error("--python: '" + command + "' did not print a JSON list of rates");
  return rows;
}

double rate_of(const Json& row) { return row["samples_per_second"].get<double>(); }

Json measure_reading(const std::string& data_dir, int rounds, const std::string& python) {
  const auto data = accel::programs::load_fashion_mnist(data_dir, std::nullopt, /*eval_limit=*/1);
  Json rows = Json::array();
  double best = 0, with_one_worker = 0;
  for (const int workers : {0, 1, 2, 4}) {
    const auto rate = median_of(rounds, [&] { return samples_per_second(data->train, workers); });
    rows.push_back({{"workers", workers}, {"samples_per_second", rate}});
    best = std::max(best, rate);
    if (workers == 1) with_one_worker = rate;
  }
  Json result = {{"batch", kBatch}, {"accel", rows}, {"python", "not measured"}};
  if (python.empty()) return result;
  result["python"] = ask_python(python);
  double python_best = 0, stock = 0;
  for (const auto& row : result["python"]) {
    python_best = std::max(python_best, rate_of(row));
    if (row["dataset"] == "TensorDataset" && row["workers"] == 1) stock = rate_of(row);
  }
  result["one_worker_over_python"] = with_one_worker / stock;
  result["best_over_python"] = best / python_best;
  return result;
}

// --- resume ----------------------------------------------------------------------------------------------------------

// Sample i is the number i, so a batch shows its position. Counts reads, which shows whether a resume reads and drops
// the skipped samples.
struct CountingSet {
  std::shared_ptr<std::int64_t> num_read = std::make_shared<std::int64_t>(0);
  [[nodiscard]] std::int64_t size() const { return kSetSize; }
  [[nodiscard]] at::Tensor get(std::int64_t index) const {
    ++*num_read;
    return at::scalar_tensor(index, at::kLong);
  }
};

struct Resumed {
  double seconds = 0;
  std::int64_t num_read = 0;
};

// Measures the time from knowing the position to holding the next batch. `go_on(batches)` returns the loader whose next
// pass starts there.
template <typename GoOn>
Resumed resume(bool shuffle, const GoOn& go_on) {
  accel::Accelerator accelerator;
  const CountingSet set;
  auto batches = accelerator.prepare(accel::DataLoader(set, {.batch_size = kBatch, .shuffle = shuffle}));
  const auto start = Clock::now();
  auto rest = go_on(batches);
  auto first = rest.begin();
  const auto seconds = seconds_since(start);
  const at::Tensor held = *first;
  if (!shuffle && held[0].item<std::int64_t>() != kSkippedBatches * kBatch)
    throw accel::Error("the resumed pass starts at another batch");
  return {seconds, *set.num_read};
}

Resumed skip(bool shuffle) {
  return resume(shuffle, [](auto& batches) { return accel::skip_first_batches(batches, kSkippedBatches); });
}

// The state of a loader that has returned the skipped batches, serialized as in a checkpoint.
std::string saved_state(bool shuffle) {
  accel::Accelerator accelerator;
  const auto batches =
      accelerator.prepare(accel::DataLoader(CountingSet(), {.batch_size = kBatch, .shuffle = shuffle}));
  auto last = accel::skip_first_batches(batches, kSkippedBatches - 1).begin();
  return accel::pack(batches.state_dict());
}

Resumed load(bool shuffle, const std::string& state) {
  return resume(shuffle, [&](auto& batches) {
    batches.load_state_dict(accel::unpack<accel::Value>(state));
    return batches;
  });
}

double seconds_of_permutation() {
  const auto start = Clock::now();
  torch::randperm(kSetSize, at::kLong);
  return seconds_since(start);
}

// Pairs every time with a permutation measured just before, so that their ratio does not depend on the machine's load.
Json measure_way(const std::string& way, bool shuffle, int rounds, const std::function<Resumed()>& go_on) {
  // Two batches are read: the one that is returned, and the next one, which shows whether the first is the last.
  const auto num_read = go_on().num_read;
  std::vector<double> seconds, ratios;
  for (int round = 0; round < rounds; ++round) {
    const auto permutation = seconds_of_permutation();
    seconds.push_back(go_on().seconds);
    ratios.push_back(seconds.back() / permutation);
  }
  return {{"way", way},
          {"shuffle", shuffle},
          {"ms", 1e3 * median(seconds)},
          {"over_randperm", median(ratios)},
          {"samples_read", num_read}};
}

Json measure_resume(int rounds) {
  Json ways = Json::array();
  for (const bool shuffle : {false, true}) {
    const auto state = saved_state(shuffle);
    ways.push_back(measure_way("skip_first_batches", shuffle, rounds, [&] { return skip(shuffle); }));
    ways.push_back(measure_way("load_state_dict", shuffle, rounds, [&] { return load(shuffle, state); }));
  }
  return {{"samples", kSetSize},
          {"batches_behind", kSkippedBatches},
          {"randperm_ms", 1e3 * median_of(rounds, seconds_of_permutation)},
          {"ways", ways}};
}

// --- output ----------------------------------------------------------------------------------------------------------

void print(const Json& result) {
  const auto& reading = result["read"];
  std::printf("%-44s %8s %16s\n", "Fashion-MNIST, batch 32, shuffled", "workers", "samples/s");
  for (const auto& row : reading["accel"])
    std::printf("%-44s %8d %16.0f\n", "accel::DataLoader", row["workers"].get<int>(), rate_of(row));
  if (reading["python"].is_string()) {
    std::printf("%-44s %25s\n", "torch.utils.data.DataLoader", "not measured");
  } else {
    for (const auto& row : reading["python"]) {
      const auto name = "torch DataLoader, " + row["dataset"].get<std::string>();
      std::printf("%-44s %8d %16.0f\n", name.c_str(), row["workers"].get<int>(), rate_of(row));
    }
    std::printf("one worker: %.1f times Python's TensorDataset with one worker; best: %.1f times Python's best\n",
                reading["one_worker_over_python"].get<double>(), reading["best_over_python"].get<double>());
  }
  const auto& resumed = result["resume"];
  std::printf("\nresume at batch %lld of %lld samples; one torch::randperm of that size: %.0f ms\n",
              resumed["batches_behind"].get<long long>(), resumed["samples"].get<long long>(),
              resumed["randperm_ms"].get<double>());
  for (const auto& way : resumed["ways"]) {
    std::printf("%-20s %-10s %10.2f ms %8.3f randperms, %lld samples read\n", way["way"].get<std::string>().c_str(),
                way["shuffle"].get<bool>() ? "shuffled" : "in order", way["ms"].get<double>(),
                way["over_randperm"].get<double>(), way["samples_read"].get<long long>());
  }
}

}  // namespace

int main(int argc, char** argv) {
  accel::bench::Program program("loader_bench", "Measures the loader alone.");
  std::string python, data_dir = "/usr/share/datasets/fashion-mnist";
  int rounds = 5;
  program.add("--rounds", rounds, "Number of rounds per measurement; reports the median");
  program.add("--data-dir", data_dir, "Folder of Fashion-MNIST");
  program.add("--python", python, "Command that measures Python's DataLoader and prints the rates as JSON");
  if (const auto code = program.parse(argc, argv)) return *code;
  return program.report(
      [&] {
        const auto context = accel::make_single_rank();
        context->num_threads = 1;
        const accel::RankScope scope(*context);
        return Json{{"read", measure_reading(data_dir, rounds, python)}, {"resume", measure_resume(rounds)}};
      },
      print);
}

// Measures the loader alone: how fast it reads, and how fast it resumes inside an epoch.
//
//   loader_bench [--out FILE.json] [--rounds N] [--data-dir DIR] [--python COMMAND] [Google Benchmark's options]
//
// read     seconds of one epoch of a prepared DataLoader over Fashion-MNIST: batch 32, shuffled, one rank. With
//          --python, COMMAND (bench/torch_loader.py) measures Python's torch DataLoader in the same run
// resume   the time from a saved position after 500,000 batches of 32 of a map-style dataset to the next batch, beside
//          one torch::randperm of the dataset's size
#include <fmt/format.h>
#include <torch/types.h>

#include <accel/accel.hpp>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench/printed_json.hpp"
#include "bench/program.hpp"
#include "sim/programs/experiments/small_images.hpp"

namespace {

using namespace accel::bench;

constexpr std::int64_t kBatch = 32;
constexpr std::int64_t kSkippedBatches = 500'000;
constexpr std::int64_t kSetSize = kSkippedBatches * kBatch + 100 * kBatch;

// --- read ------------------------------------------------------------------------------------------------------------

// One complete epoch, from the first to the last batch; starting the workers counts.
double seconds_per_epoch(const accel::programs::LabelledImages& data, int workers) {
  accel::Accelerator accelerator;
  auto batches = accelerator.prepare(accel::DataLoader(
      accel::TensorDataset(data.images, data.labels), {.batch_size = kBatch, .shuffle = true, .num_workers = workers}));
  std::int64_t samples = 0;
  return seconds_of([&] {
    for (auto& [images, labels] : batches) samples += labels.size(0);
  });
}

// The images are loaded at the first request, which keeps the other rows independent of the data.
class Images {
 public:
  explicit Images(std::string data_dir) : data_dir_(std::move(data_dir)) {}
  const accel::programs::LabelledImages& train() {
    if (!data_) data_ = accel::programs::load_fashion_mnist(data_dir_, std::nullopt, /*eval_limit=*/1);
    return data_->train;
  }

 private:
  std::string data_dir_;
  decltype(accel::programs::load_fashion_mnist("", std::nullopt, 1)) data_;
};

Rows reading_rows(const std::string& data_dir, const std::string& python) {
  Rows rows;
  const auto images = std::make_shared<Images>(data_dir);
  for (const int workers : {0, 1, 2, 4}) {
    // The worst and the best choice in Python, whose workers never help with a set this cheap to read.
    const auto* beside = workers == 0 ? "read/python_batches/0_workers" : "read/python_tensors/1_workers";
    rows.push_back({.name = fmt::format("read/accel/{}_workers", workers),
                    .measure = [=] { return seconds_per_epoch(images->train(), workers); },
                    .beside = workers < 2 ? beside : "",
                    .compared = workers == 0 || workers == 2});
  }
  if (python.empty()) return rows;
  for (const std::string dataset : {"tensors", "samples", "batches"}) {
    for (const int workers : {0, 1, 2, 4}) {
      const auto command = fmt::format("{} {} {}", python, dataset, workers);
      rows.push_back({.name = fmt::format("read/python_{}/{}_workers", dataset, workers),
                      .measure = [=] { return printed_json(command).at("seconds").get<double>(); }});
    }
  }
  return rows;
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

// Measures the time from knowing the position to holding the next batch. `go_on(batches)` returns the loader whose next
// pass starts there.
template <typename GoOn>
double resume(bool shuffle, const GoOn& go_on) {
  accel::Accelerator accelerator;
  const CountingSet set;
  auto batches = accelerator.prepare(accel::DataLoader(set, {.batch_size = kBatch, .shuffle = shuffle}));
  at::Tensor held;
  const double seconds = seconds_of([&] {
    auto rest = go_on(batches);
    held = *rest.begin();
  });
  if (!shuffle && held[0].item<std::int64_t>() != kSkippedBatches * kBatch)
    throw accel::Error("the resumed pass starts at another batch");
  // Two batches are read: the one that is returned, and the next one, which shows whether the first is the last.
  if (*set.num_read > 2 * kBatch) throw accel::Error("the resumed pass reads skipped samples");
  return seconds;
}

double skip(bool shuffle) {
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

double load(bool shuffle, const std::string& state) {
  return resume(shuffle, [&](auto& batches) {
    batches.load_state_dict(accel::unpack<accel::Value>(state));
    return batches;
  });
}

Rows resuming_rows() {
  Rows rows;
  for (const bool shuffle : {false, true}) {
    const std::string order = shuffle ? "shuffled" : "in_order";
    rows.push_back({.name = "resume/skip_first_batches/" + order,
                    .measure = [=] { return skip(shuffle); },
                    .beside = "resume/randperm",
                    .compared = !shuffle});
    rows.push_back({.name = "resume/load_state_dict/" + order,
                    .measure =
                        [=, state = std::make_shared<std::string>()] {
                          if (state->empty()) *state = saved_state(shuffle);
                          return load(shuffle, *state);
                        },
                    .beside = "resume/randperm"});
  }
  rows.push_back(
      {.name = "resume/randperm", .measure = [] { return seconds_of([] { torch::randperm(kSetSize, at::kLong); }); }});
  return rows;
}

}  // namespace

int main(int argc, char** argv) {
  Program program("loader_bench", "Measures the loader alone.");
  std::string python, data_dir = "/usr/share/datasets/fashion-mnist";
  program.add("--data-dir", data_dir, "Folder of Fashion-MNIST");
  program.add("--python", python, "Command that measures one epoch of Python's DataLoader and prints the seconds");
  const auto context = accel::make_single_rank();
  context->num_threads = 1;
  const accel::RankScope scope(*context);
  return program.run(argc, argv, [&] {
    auto rows = reading_rows(data_dir, python);
    for (auto& row : resuming_rows()) rows.push_back(std::move(row));
    return rows;
  });
}

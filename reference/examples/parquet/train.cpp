#include <torch/torch.h>

#include <accel/accel.hpp>
#include <accel/optim.hpp>
#include <accel/parquet.hpp>

// 300 points in the plane, and whether x > y, in six row groups. Written in Python by
// pyarrow.parquet.write_table(table, "points.parquet", row_group_size=50, compression="zstd").
const char* const kPoints = POINTS;

int train(int, char**) {
  accel::Accelerator accelerator;
  accel::set_seed(42);
  // The row groups fit in memory, so that a shuffled pass decodes each of them once.
  accel::ParquetDataset points(kPoints, {.columns = {"point", "is_right"}, .cached_row_groups = 6});
  accel::ParquetDataset names(kPoints, {.columns = {"name"}});

  torch::nn::Linear line(2, 2);
  accel::optim::Adam adam(line->parameters(), torch::optim::AdamOptions(0.05));
  auto [model, optimizer, batches] =
      accelerator.prepare(line, adam, accel::DataLoader(points, {.batch_size = 10, .shuffle = true}));
  for (int epoch = 0; epoch < 8; ++epoch) {
    for (auto& batch : batches) {
      auto loss = torch::nn::functional::cross_entropy(model(batch.tensors.at("point")), batch.tensors.at("is_right"));
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
    }
  }

  torch::NoGradGuard no_grad;
  int64_t seen = 0, correct = 0;
  for (auto& batch : accelerator.prepare(accel::DataLoader(points, {.batch_size = 10}))) {
    auto [guess, truth] = accelerator.gather_for_metrics(
        std::pair(model(batch.tensors.at("point")).argmax(1), batch.tensors.at("is_right")));
    correct += (guess == truth).sum().item<int64_t>();
    seen += truth.size(0);
  }
  const double accuracy = double(correct) / double(seen);
  accelerator.print("accuracy", accuracy, "over", seen, "points; the last one is", names.get(299).strings.at("name"));
  return seen == 300 && accuracy > 0.8 ? 0 : 1;
}

int main(int argc, char** argv) { return accel::run(argc, argv, train); }

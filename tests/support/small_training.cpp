// A small training on one rank, with places at which tests interrupt it. Its parameters are kept even if it throws,
// because tests compare what is left on ranks that failed.
#include "tests/support/small_training.hpp"

#include <accel/accel.hpp>

#include "tests/support/torch.hpp"

namespace accel::testing {
namespace {

void reach(const TrainingPlaces::Place& place, RankContext& rank, int step) {
  if (place) place(rank, step);
}

}  // namespace

std::vector<std::byte> Progress::bytes() const {
  std::vector<std::byte> bytes;
  for (const auto& parameter : parameters) {
    const auto* data = static_cast<const std::byte*>(parameter.const_data_ptr());
    bytes.insert(bytes.end(), data, data + parameter.nbytes());
  }
  return bytes;
}

void train(RankContext& rank, Progress& progress, const TrainingPlaces& places) {
  constexpr int kBatch = 2;
  Accelerator accelerator({}, rank);
  set_seed(3);
  torch::nn::Linear net(6, 4);
  torch::optim::SGD sgd(net->parameters(), /*lr=*/0.1);
  DataLoader loader(TensorDataset(torch::rand({kTrainingSteps * kBatch * rank.world_size, 6})), {.batch_size = kBatch});
  auto [model, optimizer, batches] = accelerator.prepare(net, sgd, loader);
  progress.parameters = net->parameters();
  // A hook on the gradient runs inside backward, before DDP has summed the gradient.
  net->weight.register_hook([&](const at::Tensor& gradient) {
    reach(places.in_hook, rank, progress.updates);
    return gradient;
  });
  for (auto& [points] : batches) {
    const int step = progress.updates;
    reach(places.before_step, rank, step);
    accelerator.backward(model(points).square().mean());
    reach(places.before_update, rank, step);
    optimizer.step();
    ++progress.updates;
    optimizer.zero_grad();
    reach(places.after_update, rank, step);
  }
}

}  // namespace accel::testing

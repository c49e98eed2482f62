// Checkpoints of DDP's buckets. Gradients of other buckets are summed in another order on three or more ranks, so a run
// that continues from a checkpoint needs those of the run that was not interrupted.
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/convert_parameters.h>

#include "reference/accelerator/accelerator.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing::bucket_state_test {
namespace {

namespace nn = torch::nn;

struct Case {
  DistributedDataParallelKwargs kwargs = {};
  int num_steps_before = 0;  // steps before the checkpoint
};

// Trains on after a checkpoint, loads it in the same process, and trains again: every step must have the same bits.
void expect_same_bits_after_load(RankContext& rank, const Case& config, const std::string& folder) {
  Accelerator accelerator({.ddp_kwargs = config.kwargs}, rank);
  torch::manual_seed(3);
  nn::Sequential net;
  for (int layer = 0; layer < 4; ++layer) {
    net->push_back(nn::Linear(17, 17));
    net->push_back(nn::Tanh());
  }
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.3).momentum(0.9));
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const auto train = [&, &model = model, &optimizer = optimizer](int first, int end) {
    for (int step = first; step < end; ++step) {
      torch::manual_seed(100 * step + rank.rank);
      accelerator.backward(model(torch::randn({9, 17})).square().sum());
      optimizer.step();
      optimizer.zero_grad();
    }
    return nn::utils::parameters_to_vector(net->parameters()).detach().clone();
  };
  train(0, config.num_steps_before);
  accelerator.save_state(folder);
  const auto expected = train(config.num_steps_before, config.num_steps_before + 3);
  for (int repeat = 0; repeat < 2; ++repeat) {
    accelerator.load_state(folder);
    EXPECT_TRUE(train(config.num_steps_before, config.num_steps_before + 3).equal(expected))
        << rank.backend << ", " << rank.world_size << " ranks, " << config.num_steps_before << " steps before, load "
        << repeat << (config.kwargs.static_graph ? ", static_graph" : "")
        << (config.kwargs.find_unused_parameters ? ", find_unused_parameters" : "")
        << (config.kwargs.gradient_as_bucket_view ? ", gradient_as_bucket_view" : "");
  }
}

TEST(BucketStateTest, ACheckpointLoadedInTheSameProcessContinuesWithTheSameBits) {
  DistributedDataParallelKwargs small_buckets;
  small_buckets.bucket_cap_mb = 1;
  small_buckets.find_unused_parameters = true;
  DistributedDataParallelKwargs is_static, views;
  is_static.static_graph = true;
  views.gradient_as_bucket_view = true;
  for (const auto& kwargs : {DistributedDataParallelKwargs(), small_buckets, is_static, views}) {
    for (const int num_steps_before : {0, 1, 3}) {
      // A static graph has then been learned, but its buckets are not rebuilt: a resumed run would learn it again.
      if (kwargs.static_graph && num_steps_before == 1) continue;
      for (const auto backend : {Backend::kSim, Backend::kGlooThreads}) {
        for (const int num_ranks : {1, 2, 3, 4}) {
          const TemporaryFolder folder;
          run_ranks(backend, num_ranks, [&](RankContext& rank) {
            expect_same_bits_after_load(rank, {.kwargs = kwargs, .num_steps_before = num_steps_before},
                                        folder.path("checkpoint"));
          });
        }
      }
    }
  }
}

}  // namespace
}  // namespace accel::testing::bucket_state_test

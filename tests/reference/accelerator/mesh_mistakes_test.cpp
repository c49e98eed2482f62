// What tensor-parallel ranks must have in common: samples, targets, declared cuts. A difference is an error on every
// rank, and statistics count every sample once.
#include <accel/accel.hpp>
#include <accel/optim.hpp>
#include <gmock/gmock.h>

#include "reference/parallel/sync_batch_norm.hpp"
#include "reference/tensor_parallel/layers.hpp"
#include "reference/tensor_parallel/operators.hpp"
#include "tests/support/divided_net.hpp"
#include "tests/support/dyadic.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing::mesh_mistakes_test {
namespace {

using namespace accel::parallel;
using ::testing::HasSubstr;

// Samples (8, kWidth), of which a step uses all: each data-parallel rank its share.
at::Tensor samples(int step) { return dyadic({8, kWidth}, make_generator(20 + step), 2); }

int num_ranks(const ParallelismConfig& mesh) { return static_cast<int>(mesh.total_size()); }

struct NormedNet : DividedNet {
  explicit NormedNet(const DeviceMesh& mesh) : DividedNet(mesh) {
    norm = register_module("norm", SyncBatchNorm(SyncBatchNormOptions(kWidth)));
    norm->to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& values) { return DividedNet::forward(norm->forward(values)); }
  SyncBatchNorm norm{nullptr};
};

// A sample that several tensor-parallel ranks read counts once in n / (n - 1) of the running variance.
TEST(MeshMistakesTest, BatchNormCountsEverySampleOnce) {
  torch::nn::BatchNorm1d expected(kWidth);
  expected->to(at::kDouble);
  expected->forward(samples(0));
  for (const auto backend : {Backend::kSim, Backend::kGlooThreads}) {
    for (const auto& mesh : {ParallelismConfig{}, ParallelismConfig{.tp_size = 2}, ParallelismConfig{.tp_size = 4},
                             ParallelismConfig{.dp_replicate_size = 2, .tp_size = 2}}) {
      testing::run_ranks(backend, num_ranks(mesh), [&](RankContext&) {
        Accelerator accelerator({.parallelism_config = mesh});
        auto net = std::make_shared<NormedNet>(accelerator.mesh());
        fill(*net);
        auto model = accelerator.prepare(net);
        const auto own = samples(0).chunk(accelerator.data_parallel_size())[accelerator.data_parallel_rank()];
        accelerator.backward(model(own).square().mean());
        EXPECT_TRUE(at::allclose(net->norm->running_var, expected->running_var, 1e-12, 1e-12));
        EXPECT_TRUE(at::allclose(net->norm->running_mean, expected->running_mean, 1e-12, 1e-12));
      });
    }
  }
}

// The message of the error, which every rank throws alike; "" if there is none.
template <typename Net, typename Body>
void expect_error_on_every_rank(const ParallelismConfig& mesh, const std::string& text, const Body& body) {
  for (const auto backend : {Backend::kSim, Backend::kGlooThreads}) {
    const auto messages = collect_ranks(backend, num_ranks(mesh), [&](RankContext&) {
      return message_of<Error>([&] {
        Accelerator accelerator({.parallelism_config = mesh});
        auto net = std::make_shared<Net>(accelerator.mesh());
        optim::SGD sgd(net->parameters(), {.lr = 1.0 / 16});
        auto [model, optimizer] = accelerator.prepare(net, sgd);
        body(accelerator, model, optimizer);
      });
    });
    for (const auto& message : messages) {
      EXPECT_THAT(message, HasSubstr(text)) << name_of(backend);
      EXPECT_EQ(message, messages.front());
    }
  }
}

TEST(MeshMistakesTest, TensorParallelRanksThatReadDifferentSamplesAreAnError) {
  for (const auto& mesh : {ParallelismConfig{.tp_size = 2}, ParallelismConfig{.dp_replicate_size = 2, .tp_size = 2}}) {
    expect_error_on_every_rank<DividedNet>(mesh, "got different inputs: ranks 0, 1",
                                           [](auto& accelerator, auto& model, auto&) {
                                             accelerator.backward(model(samples(accelerator.process_index())).sum());
                                           });
  }
}

TEST(MeshMistakesTest, TensorParallelRanksWithDifferentTargetsAreAnError) {
  expect_error_on_every_rank<DividedNet>(
      {.tp_size = 2}, "optimizer.step: the tensor-parallel ranks of one group have different gradients",
      [](auto& accelerator, auto& model, auto& optimizer) {
        accelerator.backward((model(samples(0)) - samples(accelerator.process_index() + 1)).square().sum());
        optimizer.step();
      });
}

// Each rank multiplies another part of the features by its weights, without a CutModule that declares it.
struct UndeclaredNet : DividedNet {
  explicit UndeclaredNet(const DeviceMesh& mesh) : DividedNet(mesh) {
    part = register_parameter("part", at::ones({kInner / group.size()}, at::kDouble));
  }
  at::Tensor forward(const at::Tensor& values) {
    const auto hidden =
        elementwise(expansion->forward(copy({values}, group)), [&](const at::Tensor& x) { return x.relu() * part; });
    return projection->forward(hidden).local * scale;
  }
  at::Tensor part;
};

TEST(MeshMistakesTest, ALayerWithAnUndeclaredCutIsAnError) {
  for (const int tp : {2, 4}) {
    expect_error_on_every_rank<UndeclaredNet>({.tp_size = tp}, "'part' has gradients of norm",
                                              [](auto& accelerator, auto& model, auto& optimizer) {
                                                accelerator.backward(model(samples(0)).square().sum());
                                                optimizer.step();
                                              });
  }
}

// Three heads on two ranks.
struct HeadsNet : DividedNet {
  using DividedNet::DividedNet;
  at::Tensor forward(const at::Tensor& values) {
    const auto hidden = expansion->forward(copy({values}, group));
    return hidden.local.view({values.size(0), 8, -1}).sum({1, 2});
  }
};

TEST(MeshMistakesTest, HeadsThatDoNotDivideAreOneSentence) {
  expect_error_on_every_rank<HeadsNet>({.tp_size = 4}, "use the rank's own number of heads, heads / 4",
                                       [](auto&, auto& model, auto&) { model(samples(0)); });
}

}  // namespace
}  // namespace accel::testing::mesh_mistakes_test

// A module that assigns to its member instead of writing in place no longer changes the buffer that it registered.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/accel.hpp>

#include "sim/backend/simulate.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing::registered_buffers_test {
namespace {

namespace nn = torch::nn;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

enum class Write { kInPlace, kAssign, kAssignAfterUse };

struct Counter : nn::Module {
  explicit Counter(Write how)
      : write(how),
        layer(register_module("layer", nn::Linear(4, 4))),
        norm(register_module("norm", nn::BatchNorm1d(4))),
        seen(register_buffer("seen", at::ones({4}))),
        constant(register_buffer("constant", at::ones({4}))) {
    register_buffer("unnamed", at::ones({4}));
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto total = x.sum(0);
    auto y = norm(layer(x)) * constant;
    if (write == Write::kAssignAfterUse) y = y * seen;  // backward needs the old tensor
    if (write == Write::kInPlace)
      seen.add_(total);
    else
      seen = seen + total;
    return y;
  }

  Write write;
  nn::Linear layer;
  nn::BatchNorm1d norm;
  at::Tensor seen, constant;
};

struct Run {
  AcceleratorOptions options = {};
  int num_steps = 1;
  std::string folder = {};  // not empty: saves there
};

std::vector<std::string> findings(Write write, const Run& run = {}) {
  const auto report = sim::rehearse({.num_ranks = 2}, [&](RankContext& rank) {
    Accelerator accelerator(run.options, rank);
    torch::manual_seed(1);
    auto net = std::make_shared<Counter>(write);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto handles = net->named_buffers();  // of the program, for a while
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    handles.clear();
    for (int step = 0; step < run.num_steps; ++step) {
      accelerator.backward(model(at::ones({3, 4})).square().mean());
      optimizer.step();
      optimizer.zero_grad();
    }
    if (run.num_steps == 0) {
      const torch::NoGradGuard no_grad;
      model(at::ones({3, 4}));
    }
    if (!run.folder.empty()) accelerator.save_state(run.folder);
  });
  EXPECT_EQ(message_of(report.error), "");
  return report.findings;
}

const auto names_seen = Contains(HasSubstr("refers to the registered buffer 'seen' any more"));
const auto names_a_buffer = Contains(HasSubstr("any more: the module has assigned"));

TEST(RegisteredBuffersTest, ABufferThatIsWrittenInPlaceIsRight) {
  for (const int steps : {1, 3}) EXPECT_THAT(findings(Write::kInPlace, {.num_steps = steps}), Not(names_a_buffer));
}

TEST(RegisteredBuffersTest, AnAssignedMemberIsNamedInTheFirstStep) {
  EXPECT_THAT(findings(Write::kAssign), names_seen);
  EXPECT_THAT(findings(Write::kAssignAfterUse), names_seen);
}

TEST(RegisteredBuffersTest, AnAssignedMemberIsNamedUnderEveryEngine) {
  const AcceleratorOptions sharded{.fsdp_plugin = FullyShardedDataParallelPlugin{}};
  EXPECT_THAT(findings(Write::kAssign, {.options = sharded}), names_seen);
  EXPECT_THAT(findings(Write::kInPlace, {.options = sharded}), Not(names_a_buffer));
  const AcceleratorOptions zero{.deepspeed_plugin = DeepSpeedPlugin{.zero_stage = 1}};
  EXPECT_THAT(findings(Write::kAssign, {.options = zero}), names_seen);
  EXPECT_THAT(findings(Write::kInPlace, {.options = zero}), Not(names_a_buffer));
}

TEST(RegisteredBuffersTest, AnAssignedMemberIsNamedByASave) {
  const TemporaryFolder folder;
  EXPECT_THAT(findings(Write::kAssign, {.num_steps = 0, .folder = folder.path("saved")}), names_seen);
  EXPECT_THAT(findings(Write::kInPlace, {.num_steps = 0, .folder = folder.path("right")}), Not(names_a_buffer));
}

}  // namespace
}  // namespace accel::testing::registered_buffers_test

// Tests of the device on which the training paths are tested: it has the CPU's numbers, and it reports accesses that
// nothing orders.
#include "tests/support/fake_device/device.hpp"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "tests/support/fake_device/collectives.hpp"
#include "tests/support/fake_device/race_detector.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing {
namespace {

namespace nn = torch::nn;
namespace F = torch::nn::functional;
using fake_device::device;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class FakeDeviceTest : public ::testing::Test {
 protected:
  FakeDeviceTest() { fake_device::races().clear(); }

  /// Computes on the CPU and on the device, and expects equal bits and no race.
  static void expect_same(const std::function<std::vector<at::Tensor>(c10::Device)>& compute) {
    const auto of_cpu = compute(at::kCPU), of_device = compute(device(0));
    ASSERT_EQ(of_cpu.size(), of_device.size());
    for (std::size_t i = 0; i < of_cpu.size(); ++i) EXPECT_TRUE(torch::equal(of_cpu[i], of_device[i].cpu())) << i;
    EXPECT_THAT(fake_device::races().races(), IsEmpty());
  }

  c10::impl::VirtualGuardImpl guard_{c10::DeviceType::PrivateUse1};
  c10::Stream other_ = guard_.getStreamFromGlobalPool(device(0));
};

// --- numbers --------------------------------------------------------------------------------------------------------

TEST_F(FakeDeviceTest, ATrainingStepHasTheBitsOfTheCpu) {
  expect_same([](c10::Device on) {
    torch::manual_seed(1);
    nn::Linear first(8, 16), second(16, 4);
    first->to(on);
    second->to(on);
    const auto inputs = torch::randn({6, 8}).to(on);
    auto loss = F::cross_entropy(second(first(inputs).relu()), torch::zeros({6}, torch::kLong).to(on));
    loss.backward();
    return std::vector<at::Tensor>{loss.detach(), first->weight.grad(), second->bias.grad()};
  });
}

TEST_F(FakeDeviceTest, ConvolutionsHaveTheBitsOfTheCpu) {
  expect_same([](c10::Device on) {
    torch::manual_seed(1);
    nn::Conv2d conv(1, 4, 3);
    nn::BatchNorm2d norm(4);
    conv->to(on);
    norm->to(on);
    auto out = norm(conv(torch::randn({2, 1, 8, 8}).to(on)));
    out.square().sum().backward();
    return std::vector<at::Tensor>{out.detach(), conv->weight.grad(), conv->bias.grad(), norm->running_var};
  });
}

// The CPU's fused kernel for attention is not used for other devices.
TEST_F(FakeDeviceTest, AttentionHasTheBitsOfTheCpu) {
  at::globalContext().setSDPUseFlash(false);
  expect_same([](c10::Device on) {
    torch::manual_seed(1);
    nn::Embedding embedding(16, 8);
    embedding->to(on);
    auto values = at::layer_norm(embedding(torch::randint(16, {2, 6}).to(on)), {8});
    const auto heads = values.view({2, 6, 2, 4}).transpose(1, 2);
    auto out = at::scaled_dot_product_attention(heads, heads, heads, {}, 0.0, /*is_causal=*/true);
    at::gelu(out, "tanh").sum().backward();
    return std::vector<at::Tensor>{out.detach(), embedding->weight.grad()};
  });
  at::globalContext().setSDPUseFlash(true);
}

TEST_F(FakeDeviceTest, FusedOptimizersHaveTheBitsOfTheCpu) {
  expect_same([](c10::Device on) {
    torch::manual_seed(1);
    std::vector<at::Tensor> parameters{torch::randn({5, 3}).to(on)}, gradients{torch::randn({5, 3}).to(on)},
        means{torch::zeros({5, 3}).to(on)}, squares{torch::zeros({5, 3}).to(on)}, steps{torch::ones({}).to(on)};
    at::_fused_adamw_(parameters, gradients, means, squares, {}, steps, 0.1, 0.9, 0.99, 0.01, 1e-8, false, false);
    at::_foreach_mul_(gradients, 0.5);
    return std::vector<at::Tensor>{parameters[0], means[0], gradients[0]};
  });
}

TEST_F(FakeDeviceTest, LossScalingHasTheBitsOfTheCpu) {
  expect_same([](c10::Device on) {
    std::vector<at::Tensor> gradients{torch::tensor({1.0F, 2.0F}).to(on)};
    auto found = torch::zeros({}).to(on);
    at::_amp_foreach_non_finite_check_and_unscale_(gradients, found, torch::full({}, 0.5).to(on));
    return std::vector<at::Tensor>{gradients[0], found};
  });
}

TEST_F(FakeDeviceTest, IndexingHasTheResultsOfTheCpu) {
  expect_same([](c10::Device on) {
    const auto values = torch::arange(6.0).to(on);
    return std::vector<at::Tensor>{values.index({values.ge(3)}), values.argmax(), at::cat({values, values}),
                                   values.view({2, 3}).t().contiguous(),
                                   values.index_select(0, torch::tensor({4, 1}).to(on))};
  });
}

// Its random numbers come from a generator of its own, as on a GPU.
TEST_F(FakeDeviceTest, TheDeviceHasItsOwnGenerator) {
  auto generator = at::globalContext().defaultGenerator(device(0));
  torch::manual_seed(5);  // seeds all generators
  generator.set_current_seed(3);
  const auto first = torch::randn({4}, torch::dtype(torch::kFloat).device(device(0))).cpu();
  generator.set_current_seed(3);
  const auto second = torch::randn({4}, torch::dtype(torch::kFloat).device(device(0))).cpu();
  EXPECT_TRUE(torch::equal(second, first)) << first << second;
  const auto of_cpu = torch::randn({4});
  torch::manual_seed(5);
  EXPECT_TRUE(torch::equal(torch::randn({4}), of_cpu));
}

TEST_F(FakeDeviceTest, MemoryHasALimit) {
  fake_device::set_memory_limit(fake_device::used_bytes(0) + (1 << 20));
  EXPECT_NO_THROW(torch::empty({1000}, torch::device(device(0))));
  EXPECT_THROW(torch::empty({1 << 20}, torch::device(device(0))), c10::OutOfMemoryError);
  fake_device::set_memory_limit(0);
}

// --- order ----------------------------------------------------------------------------------------------------------

TEST_F(FakeDeviceTest, AReadOnAnotherStreamNeedsAnEvent) {
  auto values = torch::zeros({4}).to(device(0));
  values.add_(1);
  {
    const c10::StreamGuard on_other(other_);
    values.mul(2);
  }
  ASSERT_THAT(fake_device::races().races(), Not(IsEmpty()));
  EXPECT_THAT(fake_device::races().races().front(), AllOf(HasSubstr("aten::mul"), HasSubstr("aten::add")));
}

TEST_F(FakeDeviceTest, AnEventOrdersStreams) {
  auto values = torch::zeros({4}).to(device(0));
  values.add_(1);
  c10::Event event(c10::DeviceType::PrivateUse1);
  event.record(guard_.getStream(device(0)));
  event.block(other_);
  const c10::StreamGuard on_other(other_);
  values.mul(2);
  EXPECT_THAT(fake_device::races().races(), IsEmpty());
}

TEST_F(FakeDeviceTest, WaitingOnTheHostOrdersStreams) {
  auto values = torch::zeros({4}).to(device(0));
  values.add_(1);
  guard_.getStream(device(0)).synchronize();
  const c10::StreamGuard on_other(other_);
  values.mul(2);
  EXPECT_THAT(fake_device::races().races(), IsEmpty());
}

TEST_F(FakeDeviceTest, PartsOfATensorDoNotConflict) {
  auto values = torch::zeros({8}).to(device(0));
  guard_.getStream(device(0)).synchronize();
  values.narrow(0, 0, 4).add_(1);
  const c10::StreamGuard on_other(other_);
  values.narrow(0, 4, 4).add_(1);
  EXPECT_THAT(fake_device::races().races(), IsEmpty());
  values.narrow(0, 3, 2).add_(1);
  EXPECT_THAT(fake_device::races().races(), Not(IsEmpty()));
}

// The memory goes to the next tensor of its stream while the other stream may still read it.
TEST_F(FakeDeviceTest, MemoryFreedBeforeAnotherStreamIsDoneIsARace) {
  for (const bool records : {false, true}) {
    fake_device::races().clear();
    {
      auto values = torch::zeros({4}).to(device(0));
      c10::Event event(c10::DeviceType::PrivateUse1);
      event.record(guard_.getStream(device(0)));
      event.block(other_);
      if (records) values.record_stream(other_);
      const c10::StreamGuard on_other(other_);
      values.mul(2);
    }
    auto next = torch::empty({4}, torch::device(device(0)));
    next.fill_(3);
    EXPECT_EQ(fake_device::races().races().empty(), records);
  }
}

// --- collectives ----------------------------------------------------------------------------------------------------

// The simulator watches the buffers of pending collectives, too.
TEST_F(FakeDeviceTest, AWaitOrdersAResultAfterItsCollective) {
  const auto double_sum = [](bool waits) {
    run_ranks(Backend::kSim, 2, [&](RankContext& rank) {
      const fake_device::DeviceScope on_device(rank);
      auto values = torch::full({4}, rank.rank + 1.0, torch::device(rank.device));
      auto work = rank.world.all_reduce(values);
      if (waits) work.wait();
      EXPECT_TRUE(torch::equal(values.mul(2).cpu(), torch::full({4}, 6.0)) || !waits);
    });
  };
  double_sum(/*waits=*/true);
  EXPECT_THAT(fake_device::races().races(), IsEmpty());
  EXPECT_THAT(message_of<Error>([&] { double_sum(/*waits=*/false); }), HasSubstr("is read by aten::mul before wait()"));
  ASSERT_THAT(fake_device::races().races(), Not(IsEmpty()));
  EXPECT_THAT(fake_device::races().races().front(), HasSubstr("all_reduce writes"));
}

TEST_F(FakeDeviceTest, AnInputMustNotBeChangedBeforeTheWait) {
  const auto overwrite = [] {
    run_ranks(Backend::kSim, 2, [](RankContext& rank) {
      const fake_device::DeviceScope on_device(rank);
      auto input = torch::ones({4}, torch::device(rank.device)), output = torch::empty({8}, torch::device(rank.device));
      auto work = rank.world.all_gather_into(output, input);
      input.fill_(2);
      work.wait();
    });
  };
  EXPECT_THAT(message_of<Error>(overwrite), HasSubstr("is changed by aten::fill_ before wait()"));
  ASSERT_THAT(fake_device::races().races(), Not(IsEmpty()));
  EXPECT_THAT(fake_device::races().races().front(), HasSubstr("all_gather_into_tensor reads"));
}

TEST_F(FakeDeviceTest, WaitingForACollectiveDoesNotBlockTheHost) {
  run_ranks(Backend::kSim, 2, [](RankContext& rank) {
    const fake_device::DeviceScope on_device(rank);
    auto values = torch::ones({4}, torch::device(rank.device));
    const auto counts = fake_device::counts_during(rank, [&] { rank.world.all_reduce(values).wait(); });
    EXPECT_EQ(counts.host_waits, 0);
  });
}

// --- copies ---------------------------------------------------------------------------------------------------------

TEST_F(FakeDeviceTest, ACopyThatDoesNotBlockArrivesWhenTheHostWaits) {
  const auto values = torch::arange(4.0).to(device(0));
  const auto copy = values.to(at::kCPU, /*non_blocking=*/true);
  EXPECT_FALSE(torch::equal(copy, torch::arange(4.0)));
  guard_.getStream(device(0)).synchronize();
  EXPECT_TRUE(torch::equal(copy, torch::arange(4.0)));
}

TEST_F(FakeDeviceTest, PinnedMemoryMustNotChangeWhileACopyFromItIsPending) {
  for (const bool waits : {true, false}) {
    fake_device::races().clear();
    auto host = torch::arange(4.0).pin_memory();
    const auto copy = host.to(device(0), /*non_blocking=*/true);
    if (waits) guard_.getStream(device(0)).synchronize();
    host.fill_(7);
    guard_.getStream(device(0)).synchronize();
    EXPECT_EQ(fake_device::races().races().empty(), waits);
  }
}

TEST_F(FakeDeviceTest, WaitsOfTheHostAreCounted) {
  auto values = torch::arange(4.0).to(device(0));
  fake_device::clear_counts();
  values.add_(1);
  EXPECT_EQ(fake_device::counts().host_waits, 0);
  values.sum().item<float>();
  EXPECT_EQ(fake_device::counts().host_waits, 1);
  values.cpu();
  EXPECT_EQ(fake_device::counts().host_waits, 2);
}

}  // namespace
}  // namespace accel::testing

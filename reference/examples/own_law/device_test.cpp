// Code for GPUs, tested without one on a device that reports what a GPU would do in silence.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <accel/accel.hpp>
#include <accel/optim.hpp>
#include <accel/testing/fake_device.hpp>
#include <accel/testing/run_ranks.hpp>

namespace {

namespace fake_device = accel::testing::fake_device;

// The code under test: the mean loss of an epoch. The sum stays on the device, so that the host runs ahead of it.
class MeanLoss {
 public:
  void add(const at::Tensor& loss) {
    sum_ = sum_.defined() ? sum_ + loss.detach() : loss.detach().clone();
    ++count_;
  }
  [[nodiscard]] double value() const { return sum_.item<double>() / count_; }

 private:
  at::Tensor sum_;
  int count_ = 0;
};

TEST(MeanLoss, MakesTheHostWaitOnlyWhenItIsRead) {
  fake_device::races().clear();
  accel::testing::run_ranks(accel::testing::Backend::kSim, 1, [](accel::RankContext& rank) {
    const fake_device::DeviceScope on_device(rank);
    accel::Accelerator accelerator;
    torch::nn::Linear net(4, 1);
    accel::optim::SGD sgd(net->parameters(), {.lr = 0.1});
    auto [model, optimizer, loader] =
        accelerator.prepare(net, sgd, accel::DataLoader(accel::TensorDataset(torch::ones({32, 4})), {.batch_size = 4}));
    MeanLoss mean;
    std::int64_t waits = 0;
    for (auto& [inputs] : loader) {
      const auto loss = model(inputs).square().mean();
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
      fake_device::clear_counts();
      mean.add(loss);
      waits += fake_device::counts().host_waits;
    }
    EXPECT_EQ(waits, 0);
    EXPECT_GT(mean.value(), 0);
  });
  EXPECT_TRUE(fake_device::races().races().empty()) << fake_device::races().races().front();
}

}  // namespace

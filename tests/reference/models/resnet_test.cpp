// ResNets: sizes, names and shapes. The live comparison with Python has their bits (properties/oracle/models.py).
#include "reference/models/resnet.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reference/checkpoint/module_state.hpp"
#include "reference/rank_local/random.hpp"
#include "tests/support/torch.hpp"

namespace accel::models {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Not;

std::int64_t num_parameters(const Model& network) {
  std::int64_t count = 0;
  for (const auto& parameter : network.parameters()) count += parameter.numel();
  return count;
}

std::vector<std::string> state_names(const Model& network) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : checkpoint::state_dict_of(network)) names.push_back(name);
  return names;
}

// The numbers that torchvision documents, and that of pytorch-cifar.
TEST(ResNetTest, TheUsualWidthHasTheUsualNumberOfParameters) {
  EXPECT_EQ(num_parameters(*resnet18()), 11'689'512);
  EXPECT_EQ(num_parameters(*resnet50()), 25'557'032);
  EXPECT_EQ(num_parameters(*cifar_resnet18()), 11'173'962);
}

TEST(ResNetTest, EveryStageHalvesTheResolutionDownToOneClassVector) {
  for (const bool small_images : {false, true}) {
    const ResNetOptions options{.width = 2, .num_classes = 7, .small_images = small_images};
    for (const std::int64_t size : {32, 33, 64}) {
      EXPECT_EQ(resnet18(options)->forward(torch::rand({3, 3, size, size})).sizes(), at::IntArrayRef({3, 7}));
      EXPECT_EQ(resnet50(options)->forward(torch::rand({3, 3, size, size})).sizes(), at::IntArrayRef({3, 7}));
    }
  }
  EXPECT_EQ(cifar_resnet18({.width = 2, .num_classes = 7})->forward(torch::rand({3, 3, 32, 32})).sizes(),
            at::IntArrayRef({3, 7}));
}

// Source: torchvision's state dicts, of 122 and 320 tensors.
TEST(ResNetTest, NamesAreTorchvisions) {
  const auto small = state_names(*resnet18({.width = 2})), large = state_names(*resnet50({.width = 2}));
  EXPECT_EQ(small.size(), 122u);
  EXPECT_EQ(large.size(), 320u);
  EXPECT_THAT(std::vector(small.begin(), small.begin() + 7),
              ElementsAre("conv1.weight", "bn1.weight", "bn1.bias", "bn1.running_mean", "bn1.running_var",
                          "bn1.num_batches_tracked", "layer1.0.conv1.weight"));
  EXPECT_THAT(std::vector(small.end() - 2, small.end()), ElementsAre("fc.weight", "fc.bias"));
  EXPECT_THAT(small, Contains("layer2.0.downsample.0.weight"));
  EXPECT_THAT(small, Not(Contains("layer1.0.downsample.0.weight"))) << "the first stage keeps the shape";
  EXPECT_THAT(large, Contains("layer1.0.downsample.1.running_var")) << "four times as many channels";
  EXPECT_THAT(large, Contains("layer3.5.conv3.weight"));
}

TEST(ResNetTest, CifarsNamesAreThoseOfPytorchCifar) {
  const auto names = state_names(*cifar_resnet18({.width = 2}));
  EXPECT_EQ(names.size(), 122u);
  EXPECT_THAT(names, Contains("layer2.0.shortcut.0.weight"));
  EXPECT_EQ(names.back(), "linear.bias");
}

// A convolution of (outputs, inputs, size, size) has the variance 2 / (outputs * size^2).
TEST(ResNetTest, ConvolutionsAreDrawnByFanOut) {
  const GeneratorScope scope(make_generator(3));
  for (const auto& network : {resnet18({.width = 32}), resnet50({.width = 32})}) {
    for (const auto& item : network->named_parameters()) {
      if (item.value().dim() != 4) continue;
      const double expected = std::sqrt(2.0 / static_cast<double>(item.value().size(0) * item.value()[0][0].numel()));
      const double error = 6 * expected / std::sqrt(2.0 * static_cast<double>(item.value().numel()));
      EXPECT_NEAR(item.value().std().item<double>(), expected, error) << item.key();
    }
  }
}

}  // namespace
}  // namespace accel::models

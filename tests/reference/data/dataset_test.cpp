// TensorDataset: samples, batches and invalid arguments. get_batch is a fast path that must equal the stack of
// samples.
#include "reference/data/dataset.hpp"

#include <gmock/gmock.h>

#include "reference/data/collate.hpp"
#include "tests/support/torch.hpp"

namespace accel {
namespace {

TEST(TensorDatasetTest, ASampleIsOneRowOfEachTensor) {
  const TensorDataset dataset(torch::arange(6).reshape({3, 2}), torch::arange(3) * 10);
  EXPECT_EQ(dataset.size(), 3);
  const auto [image, label] = dataset.get(2);
  EXPECT_TRUE(image.equal(torch::tensor({4, 5})));
  EXPECT_TRUE(label.equal(torch::tensor(20)));
}

// get_batch() is an optimisation and must equal the samples one by one, with repeated indices too.
TEST(TensorDatasetTest, ABatchIsTheStackOfItsSamplesInTheGivenOrder) {
  const TensorDataset dataset(torch::randn({5, 2, 3}), torch::arange(5));
  const std::vector<std::int64_t> indices = {4, 0, 4, 2};
  std::vector<std::tuple<at::Tensor, at::Tensor>> samples;
  for (const auto index : indices) samples.push_back(dataset.get(index));
  const auto [images, labels] = dataset.get_batch(indices);
  const auto [stacked_images, stacked_labels] = default_collate(samples);
  EXPECT_TRUE(images.equal(stacked_images));
  EXPECT_TRUE(labels.equal(stacked_labels));
}

// A training step may change its batch in place. The data set must not change with it.
TEST(TensorDatasetTest, ABatchDoesNotAliasTheDataset) {
  const auto images = torch::zeros({3, 2});
  const TensorDataset dataset(images);
  std::get<0>(dataset.get_batch({0, 1, 2})).fill_(1);
  EXPECT_TRUE(images.equal(torch::zeros({3, 2})));
}

TEST(TensorDatasetTest, TensorsOfDifferentLengthAreAnArgumentError) {
  EXPECT_THROW(TensorDataset(torch::zeros({3, 2}), torch::zeros({4})), ArgumentError);
}

TEST(TensorDatasetTest, ATensorWithoutDimensionsIsAnArgumentError) {
  EXPECT_THROW(TensorDataset(torch::tensor(1.0)), ArgumentError);
  EXPECT_THROW(TensorDataset(torch::zeros({3}), torch::tensor(1.0)), ArgumentError);
}

}  // namespace
}  // namespace accel

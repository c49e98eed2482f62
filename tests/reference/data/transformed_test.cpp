// transformed(): a data set whose samples pass through a function, like torch::data's map but lazy and for streams
// too.
#include "reference/data/transformed.hpp"

#include <gmock/gmock.h>

#include "reference/data/data_loader.hpp"
#include "tests/support/torch.hpp"

namespace accel {
namespace {

// A map-style data set.
struct Numbers {
  [[nodiscard]] std::int64_t size() const { return 5; }
  [[nodiscard]] std::int64_t get(std::int64_t index) const { return index; }
};

// A stream: 3, 2, 1.
struct Countdown {
  std::int64_t place = 0;
  void reset() { place = 3; }
  std::optional<std::int64_t> next() { return place > 0 ? std::optional(place--) : std::nullopt; }
};

const auto half = [](std::int64_t number) { return static_cast<double>(number) / 2; };
using HalfNumbers = Transformed<Numbers, decltype(half)>;
using HalfCountdown = Transformed<Countdown, decltype(half)>;
template <typename T>
concept HasShards = requires(T& dataset) {
  dataset.num_shards();
  dataset.shard(1, 0);
};
template <typename T>
concept HasSkip = requires(T& dataset) { dataset.skip(1); };

// The result must have exactly the capabilities of the source, or loaders would shard or skip what they cannot.
static_assert(MapDataset<HalfNumbers> && !IterableDataset<HalfNumbers>);
static_assert(IterableDataset<HalfCountdown> && !MapDataset<HalfCountdown>);
static_assert(!HasShards<HalfCountdown> && !HasSkip<HalfCountdown>);

class TransformedTest : public ::testing::Test {
 protected:
  std::unique_ptr<RankContext> context_ = make_single_rank();
  RankScope scope_ = RankScope(*context_);
};

TEST_F(TransformedTest, SamplesOfAMapDatasetGoThroughTheFunction) {
  DataLoader loader(transformed(Numbers(), half), {.batch_size = 5, .num_workers = 2});
  for (auto& batch : loader) EXPECT_TRUE(batch.equal(torch::tensor({0.0, 0.5, 1.0, 1.5, 2.0}, torch::kDouble)));
}

TEST_F(TransformedTest, SamplesOfAStreamGoThroughTheFunction) {
  DataLoader loader(transformed(Countdown(), half), {.batch_size = 5});
  int batches = 0;
  for (auto& batch : loader) {
    EXPECT_TRUE(batch.equal(torch::tensor({1.5, 1.0, 0.5}, torch::kDouble)));
    ++batches;
  }
  EXPECT_EQ(batches, 1);
}

// get_batch of the source would bypass the function.
TEST_F(TransformedTest, GetBatchOfTheDatasetIsNotUsed) {
  const auto dataset =
      transformed(TensorDataset(torch::arange(4)), [](auto sample) { return std::get<0>(sample) * 10; });
  static_assert(!BatchedDataset<std::remove_const_t<decltype(dataset)>>);
  DataLoader loader(dataset, {.batch_size = 4});
  for (auto& batch : loader) EXPECT_TRUE(batch.equal(torch::tensor({0, 10, 20, 30})));
}

}  // namespace
}  // namespace accel

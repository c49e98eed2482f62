// Data sets and loaders of torch::data, used through from_torch. They have their own rules of copying and threads,
// which the adapters must respect.
#include "reference/data/from_torch.hpp"

#include <gmock/gmock.h>
#include <torch/data.h>

#include <atomic>
#include <thread>

#include "reference/data/data_loader.hpp"
#include "tests/reference/data/passes.hpp"
#include "tests/support/torch.hpp"

namespace accel {
namespace {

using ::testing::ElementsAre;
using testing::values_of;
namespace td = torch::data;

// A data set as in LibTorch's tutorials.
struct Squares : td::datasets::Dataset<Squares> {
  td::Example<> get(std::size_t index) override {
    const auto number = static_cast<std::int64_t>(index);
    return {torch::full({2}, number), torch::tensor(number * number)};
  }
  [[nodiscard]] std::optional<std::size_t> size() const override { return 7; }
};

// torch::data promises that a copy of a data set is used by one thread at a time.
struct Unshared : td::datasets::Dataset<Unshared, td::TensorExample> {
  Unshared() = default;
  Unshared(const Unshared& other) : num_copies(other.num_copies), was_shared(other.was_shared) { ++*num_copies; }
  td::TensorExample get(std::size_t index) override {
    if (in_use.exchange(true)) *was_shared = true;
    std::this_thread::yield();
    in_use = false;
    return torch::tensor(static_cast<std::int64_t>(index));
  }
  [[nodiscard]] std::optional<std::size_t> size() const override { return 400; }
  std::atomic<bool> in_use = false;
  std::shared_ptr<std::atomic<int>> num_copies = std::make_shared<std::atomic<int>>(0);
  std::shared_ptr<std::atomic<bool>> was_shared = std::make_shared<std::atomic<bool>>(false);
};

// Counts to five in every pass.
struct Counter : td::datasets::StatefulDataset<Counter> {
  std::optional<std::vector<td::Example<>>> get_batch(std::size_t count) override {
    if (place == 5) return std::nullopt;
    std::vector<td::Example<>> batch;
    for (; place < 5 && batch.size() < count; ++place)
      batch.emplace_back(torch::tensor(place), torch::tensor(10 * place));
    return batch;
  }
  void reset() override { place = 0; }
  void save(torch::serialize::OutputArchive&) const override {}
  void load(torch::serialize::InputArchive&) override {}
  [[nodiscard]] std::optional<std::size_t> size() const override { return std::nullopt; }
  std::int64_t place = 0;
};

// A stream that ends after a given number of samples, or never.
struct Stream : td::datasets::StreamDataset<Stream> {
  explicit Stream(std::optional<std::size_t> length) : length(length) {}
  std::vector<td::Example<>> get_batch(std::size_t count) override {
    std::vector<td::Example<>> batch;
    for (std::size_t index = 0; index < count; ++index) batch.emplace_back(torch::tensor(place++), torch::tensor(0));
    return batch;
  }
  [[nodiscard]] std::optional<std::size_t> size() const override { return length; }
  std::optional<std::size_t> length;
  std::int64_t place = 0;
};

class FromTorchTest : public ::testing::Test {
 protected:
  template <typename Loader>
  static std::vector<std::vector<std::int64_t>> targets_of(Loader&& loader) {
    std::vector<std::vector<std::int64_t>> targets;
    for (auto& [data, target] : loader) targets.push_back(values_of(target));
    return targets;
  }
  std::unique_ptr<RankContext> context_ = make_single_rank();
  RankScope scope_ = RankScope(*context_);
};

// Several workers read, while LibTorch's data sets are not const: each needs its own copy.
TEST_F(FromTorchTest, ExamplesArePairsAndBatchesAreCollated) {
  const auto dataset = from_torch(Squares());
  EXPECT_EQ(dataset.size(), 7);
  EXPECT_TRUE(dataset.get(3).first.equal(torch::tensor({3, 3})));
  EXPECT_THAT(targets_of(DataLoader(dataset, {.batch_size = 3, .num_workers = 2})),
              ElementsAre(ElementsAre(0, 1, 4), ElementsAre(9, 16, 25), ElementsAre(36)));
}

// The transform has stacked the samples already; collating again would add a dimension.
TEST_F(FromTorchTest, BatchesOfACollatingTransformAreUnchanged) {
  const td::transforms::Lambda<td::Example<>> less_one(
      [](const td::Example<>& example) { return td::Example<>(example.data - 1, example.target); });
  auto stacked = Squares().map(less_one).map(td::transforms::Stack<>());
  static_assert(BatchedDataset<decltype(from_torch(stacked))>);
  for (auto& [data, target] : DataLoader(from_torch(stacked), {.batch_size = 7})) {
    EXPECT_EQ(data.sizes(), at::IntArrayRef({7, 2}));
    EXPECT_EQ(data[4][1].item<std::int64_t>(), 3);
    EXPECT_THAT(values_of(target), ElementsAre(0, 1, 4, 9, 16, 25, 36));
  }
}

// LibTorch has two kinds of examples, with and without a target.
TEST_F(FromTorchTest, ExampleWithoutTargetIsATensorAndTheLoadersCollateIsUsed) {
  const auto dataset = from_torch(td::datasets::TensorDataset(torch::arange(6)));
  DataLoader loader(dataset, {.batch_size = 3},
                    [](const std::vector<at::Tensor>& samples) { return torch::stack(samples).sum(); });
  std::vector<std::int64_t> sums;
  for (auto& sum : loader) sums.push_back(sum.item<std::int64_t>());
  EXPECT_THAT(sums, ElementsAre(3, 12));
}

// A copy for each sample would be slow, one for all would be a data race.
TEST_F(FromTorchTest, EachActiveReaderHasItsOwnCopy) {
  const Unshared dataset;
  const auto samples = from_torch(dataset);
  const int before = *dataset.num_copies;
  std::int64_t seen = 0;
  for (auto& batch : DataLoader(samples, {.batch_size = 2, .num_workers = 4})) seen += batch.numel();
  EXPECT_EQ(seen, 400);
  EXPECT_FALSE(*dataset.was_shared);
  EXPECT_LE(*dataset.num_copies - before, 4);
}

// The number of examples per request must not affect the batches.
TEST_F(FromTorchTest, StatefulDatasetIsAStreamThatResets) {
  for (const int num_per_request : {1, 2, 8}) {
    DataLoader loader(from_torch(Counter(), num_per_request), {.batch_size = 2});
    for (int pass = 0; pass < 2; ++pass)
      EXPECT_THAT(targets_of(loader), ElementsAre(ElementsAre(0, 10), ElementsAre(20, 30), ElementsAre(40)));
  }
}

// The stream returns batches of its own size, which differs from the loader's.
TEST_F(FromTorchTest, CollatedStreamIsCutIntoItsRows) {
  auto stacked = Counter().map(td::transforms::Stack<>());
  DataLoader loader(from_torch(stacked, 3), {.batch_size = 5});
  EXPECT_THAT(targets_of(loader), ElementsAre(ElementsAre(0, 10, 20, 30, 40)));
}

// LibTorch's streams may continue after their size; a loader must end there.
TEST_F(FromTorchTest, AStreamEndsAtItsSizeIfItHasOne) {
  auto sized = from_torch(Stream(3), 2);
  for (int pass = 0; pass < 2; ++pass) {
    sized.reset();
    int count = 0;
    while (count < 10 && sized.next()) ++count;
    EXPECT_EQ(count, 3);
  }
  auto endless = from_torch(Stream(std::nullopt), 2);
  for (std::int64_t index = 0; index < 100; ++index) EXPECT_EQ(endless.next()->first.item<std::int64_t>(), index);
}

// With workers, torch's loader has requests in flight when a loop is left. They must not appear in the next pass.
TEST_F(FromTorchTest, ALoadersPassesAreCompleteEvenAfterABreak) {
  for (const std::size_t workers : {0, 2}) {
    auto torch_loader = td::make_data_loader<td::samplers::SequentialSampler>(
        Squares().map(td::transforms::Stack<>()), td::DataLoaderOptions(3).workers(workers));
    DataLoader loader(from_torch_loader(std::move(torch_loader)), {.batch_size = 1}, IdentityCollate());
    for (auto& [data, target] : loader) {
      EXPECT_EQ(target.numel(), 3);
      break;
    }
    for (int pass = 0; pass < 2; ++pass)
      EXPECT_THAT(targets_of(loader), ElementsAre(ElementsAre(0, 1, 4), ElementsAre(9, 16, 25), ElementsAre(36)));
  }
}

// A finished loader of LibTorch can be used too; its batches are kept.
TEST_F(FromTorchTest, LoaderWithoutACollatingTransformIsCollated) {
  auto torch_loader = td::make_data_loader(Counter(), td::DataLoaderOptions(2));
  DataLoader loader(from_torch_loader(std::move(torch_loader)), {.batch_size = 1}, IdentityCollate());
  EXPECT_THAT(targets_of(loader), ElementsAre(ElementsAre(0, 10), ElementsAre(20, 30), ElementsAre(40)));
}

// A stream that is asked for no samples would never end.
TEST_F(FromTorchTest, EmptyRequestsAreRejected) {
  EXPECT_THROW(from_torch(Counter(), 0), ArgumentError);
  EXPECT_THROW(IdentityCollate()(std::vector{torch::ones(1), torch::ones(1)}), ArgumentError);
}

}  // namespace
}  // namespace accel

// Worker threads of loaders: order of batches, random streams per worker, errors, and loops that are left early.
// The streams must be those of Python's worker processes.
#include "reference/data/workers.hpp"

#include <gmock/gmock.h>

#include "reference/core/random.hpp"
#include "reference/data/data_loader.hpp"
#include "tests/support/torch.hpp"

namespace accel {
namespace {

// The streams must be PyTorch's, so that random augmentations are the same.
TEST(WorkersTest, AWorkerDrawsFromAStreamSeededByItsNumber) {
  constexpr int kNumWorkers = 3, kNumTasks = 9;
  // torch seeds worker w with base_seed + w.
  constexpr std::uint64_t kBaseSeed = 100;
  std::vector<std::promise<std::int64_t>> drawn(kNumTasks);
  std::vector<at::Generator> generators;
  for (int worker = 0; worker < kNumWorkers; ++worker) generators.push_back(make_generator(kBaseSeed + worker));
  Workers workers(std::move(generators));
  for (auto& promise : drawn) workers.submit([&] { promise.set_value(draw_int64(default_generator())); });

  std::vector<at::Generator> streams;
  for (int worker = 0; worker < kNumWorkers; ++worker) streams.push_back(make_generator(kBaseSeed + worker));
  for (int task = 0; task < kNumTasks; ++task) {
    EXPECT_EQ(drawn[task].get_future().get(), draw_int64(streams[task % kNumWorkers])) << "task " << task;
  }
}

// Its random stream would otherwise be used by another sample in each run.
TEST(WorkersTest, TasksOfOneWorkerRunInOrder) {
  std::vector<int> order;  // written by the single worker and read after it has ended
  std::promise<void> last;
  {
    Workers workers({make_generator(0)});
    for (int task = 0; task < 50; ++task) workers.submit([&order, task] { order.push_back(task); });
    workers.submit([&] { last.set_value(); });
    last.get_future().wait();
  }
  EXPECT_EQ(order.size(), 50U);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

// Sample i is i, together with a random number that shows which stream it was read with.
struct RandomDataset {
  [[nodiscard]] static std::int64_t size() { return 11; }
  [[nodiscard]] static std::pair<int, std::int64_t> get(std::int64_t index) {
    return {static_cast<int>(index), draw_int64(default_generator())};
  }
};

// Its sample 5 cannot be read.
struct ThrowingDataset {
  [[nodiscard]] static std::int64_t size() { return 8; }
  [[nodiscard]] static int get(std::int64_t index) {
    check_argument(index != 5, "sample {} is broken", index);
    return static_cast<int>(index);
  }
};

std::vector<at::Tensor> pass_of(int num_workers, std::vector<at::Tensor>* random = nullptr) {
  const GeneratorScope scope(make_generator(1));
  DataLoader loader(RandomDataset(), {.batch_size = 2, .shuffle = true, .num_workers = num_workers});
  std::vector<at::Tensor> batches;
  for (auto& [index, number] : loader) {
    batches.push_back(index);
    if (random != nullptr) random->push_back(number);
  }
  return batches;
}

// More workers than batches are included.
TEST(WorkersTest, BatchesArriveInTheOrderOfALoaderWithoutWorkers) {
  const auto expected = torch::cat(pass_of(0));
  for (const int num_workers : {1, 2, 3, 9})
    EXPECT_TRUE(torch::cat(pass_of(num_workers)).equal(expected)) << num_workers;
}

// As in PyTorch: each epoch has other augmentations, which the loader's generator determines.
TEST(WorkersTest, TheBaseSeedIsTheLoadersDrawInEachPass) {
  std::vector<at::Tensor> random;
  pass_of(2, &random);
  const auto base_seed = static_cast<std::uint64_t>(draw_int64(make_generator(1)));
  std::vector<at::Generator> streams = {make_generator(base_seed), make_generator(base_seed + 1)};
  ASSERT_EQ(random.size(), 6U);
  for (std::size_t batch = 0; batch < random.size(); ++batch) {
    for (std::int64_t row = 0; row < random[batch].size(0); ++row) {
      EXPECT_EQ(random[batch][row].item<std::int64_t>(), draw_int64(streams[batch % 2]))
          << "batch " << batch << ", row " << row;
    }
  }
}

// The error must appear at the batch that failed, after all batches before it.
TEST(WorkersTest, AnExceptionOfTheDatasetReachesTheReader) {
  for (const int num_workers : {0, 1, 3}) {
    DataLoader loader(ThrowingDataset(), {.batch_size = 2, .num_workers = num_workers});
    int num_read = 0;
    std::string error;
    try {
      for (auto& batch : loader) num_read += static_cast<int>(batch.size(0));
    } catch (const ArgumentError& caught) {
      error = caught.what();
    }
    EXPECT_EQ(error, "sample 5 is broken") << num_workers;
    EXPECT_EQ(num_read, 4) << num_workers;
  }
}

// Workers that are blocked on a full queue must be woken, or the destructor would wait forever.
TEST(WorkersTest, LeavingALoopEndsItsWorkers) {
  const GeneratorScope scope(make_generator(1));
  DataLoader loader(RandomDataset(), {.batch_size = 1, .num_workers = 4, .prefetch_factor = 3});
  for (int pass = 0; pass < 3; ++pass) {
    for (auto& [index, number] : loader) {
      EXPECT_EQ(index.item<std::int64_t>(), 0);
      break;
    }
  }
}

}  // namespace
}  // namespace accel

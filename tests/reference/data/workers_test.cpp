// Worker threads of loaders: order of batches, random streams per worker, errors, and loops that are left early.
// The streams must be those of Python's worker processes.
#include "reference/data/workers.hpp"

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "reference/data/data_loader.hpp"
#include "reference/rank_local/random.hpp"
#include "tests/support/torch.hpp"

namespace accel {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The streams must be PyTorch's, so that random augmentations are the same.
TEST(WorkersTest, AWorkerDrawsFromAStreamSeededByItsNumber) {
  constexpr int kNumWorkers = 3, kNumTasks = 9;
  // torch seeds worker w with base_seed + w.
  constexpr std::uint64_t kBaseSeed = 100;
  std::vector<at::Generator> generators;
  for (int worker = 0; worker < kNumWorkers; ++worker) generators.push_back(make_generator(kBaseSeed + worker));
  Workers workers(std::move(generators));
  std::vector<std::future<std::int64_t>> drawn;
  for (int task = 0; task < kNumTasks; ++task)
    drawn.push_back(workers.submit(task % kNumWorkers, [] { return draw_int64(default_generator()); }));

  std::vector<at::Generator> streams;
  for (int worker = 0; worker < kNumWorkers; ++worker) streams.push_back(make_generator(kBaseSeed + worker));
  for (int task = 0; task < kNumTasks; ++task) {
    EXPECT_EQ(drawn[task].get(), draw_int64(streams[task % kNumWorkers])) << "task " << task;
  }
}

// Its random stream would otherwise be used by another sample in each run.
// Those that run end, since a thread that nobody joins would end the process.
#ifndef ACCEL_SANITIZED  // the sanitizer ends the process if it gets no memory for a thread
TEST(WorkersTest, AThreadThatTheSystemRefusesIsAnErrorThatNamesTheLimit) {
  std::vector<at::Generator> generators;
  for (int worker = 0; worker < 64; ++worker) generators.push_back(make_generator(worker));
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  rlimit before{};
  getrlimit(RLIMIT_AS, &before);
  const rlimit limit{pages * getpagesize() + (64U << 20U), before.rlim_max};  // the stacks of a few threads
  setrlimit(RLIMIT_AS, &limit);
  std::string problem;
  try {
    const Workers workers(std::move(generators));
  } catch (const ConfigError& error) {
    problem = error.what();
  }
  setrlimit(RLIMIT_AS, &before);
  EXPECT_THAT(problem, AllOf(HasSubstr("num_workers: 64: the limit of threads"), HasSubstr("ulimit")));
}
#endif

TEST(WorkersTest, TasksOfOneWorkerRunInOrder) {
  std::vector<int> order;  // written by the single worker and read after it has finished
  Workers workers({make_generator(0)});
  for (int task = 0; task < 50; ++task) workers.submit(0, [&order, task] { order.push_back(task); });
  workers.finish();
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

// torch: workers are seeded in the first pass only, which is also the only one that draws their seed.
TEST(WorkersTest, PersistentWorkersContinueTheirRandomNumbers) {
  const GeneratorScope scope(make_generator(1));
  DataLoader loader(RandomDataset(), {.batch_size = 2, .num_workers = 2, .persistent_workers = true});
  const auto draws = make_generator(1);
  const auto base_seed = static_cast<std::uint64_t>(draw_int64(draws));
  std::vector<at::Generator> streams = {make_generator(base_seed), make_generator(base_seed + 1)};
  for (int pass = 0; pass < 3; ++pass) {
    int batch = 0;
    for (auto& [index, numbers] : loader) {
      for (std::int64_t row = 0; row < numbers.size(0); ++row)
        EXPECT_EQ(numbers[row].item<std::int64_t>(), draw_int64(streams[batch % 2])) << "pass " << pass;
      ++batch;
    }
  }
  EXPECT_EQ(draw_int64(default_generator()), draw_int64(draws));
}

std::vector<at::Tensor> numbers_of(auto& loader, int num_batches = 1'000) {
  std::vector<at::Tensor> all;
  for (auto& [index, numbers] : loader) {
    all.push_back(numbers);
    if (static_cast<int>(all.size()) == num_batches) break;
  }
  return all;
}

// Between two passes and inside one, also if worker_init_fn draws.
TEST(WorkersTest, PersistentWorkersContinueInANewProcess) {
  const DataLoaderOptions options{.batch_size = 2,
                                  .num_workers = 2,
                                  .worker_init_fn = [](int) { draw_int64(default_generator()); },
                                  .persistent_workers = true};
  const GeneratorScope scope(make_generator(1));
  DataLoader whole(RandomDataset(), options);
  numbers_of(whole);
  const auto between = whole.state_dict();
  std::optional<Value> inside;
  std::vector<at::Tensor> second, rest;
  for (auto& [index, numbers] : whole) {
    (inside ? rest : second).push_back(numbers);
    if (second.size() == 3 && !inside) inside = whole.state_dict();
  }
  const auto third = numbers_of(whole);

  DataLoader after_first(RandomDataset(), options);
  after_first.load_state_dict(unpack<Value>(pack(between)));
  second.insert(second.end(), rest.begin(), rest.end());
  EXPECT_TRUE(torch::equal(torch::cat(numbers_of(after_first)), torch::cat(second)));
  EXPECT_TRUE(torch::equal(torch::cat(numbers_of(after_first)), torch::cat(third)));

  DataLoader in_second(RandomDataset(), options);
  in_second.load_state_dict(unpack<Value>(pack(*inside)));
  EXPECT_TRUE(torch::equal(torch::cat(numbers_of(in_second)), torch::cat(rest)));
  EXPECT_TRUE(torch::equal(torch::cat(numbers_of(in_second)), torch::cat(third)));
}

TEST(WorkersTest, AnInitFunctionRunsOncePerWorkerBeforeItReads) {
  for (const bool is_persistent : {false, true}) {
    std::mutex mutex;
    std::vector<int> started;
    DataLoader loader(RandomDataset(), {.batch_size = 2,
                                        .num_workers = 3,
                                        .worker_init_fn =
                                            [&](int worker) {
                                              const std::lock_guard lock(mutex);
                                              started.push_back(worker);
                                            },
                                        .persistent_workers = is_persistent});
    for (int pass = 0; pass < 2; ++pass) numbers_of(loader);
    EXPECT_EQ(started.size(), is_persistent ? 3U : 6U);
    EXPECT_THAT(std::vector(started.begin(), started.begin() + 3), ::testing::UnorderedElementsAre(0, 1, 2));
  }
}

TEST(WorkersTest, AnExceptionOfTheInitFunctionReachesTheLoop) {
  DataLoader loader(RandomDataset(), {.num_workers = 2, .worker_init_fn = [](int worker) {
                                        check_argument(worker == 0, "worker {} has no data", worker);
                                      }});
  EXPECT_THAT([&] { numbers_of(loader); }, ::testing::ThrowsMessage<ArgumentError>("worker 1 has no data"));
}

// Its sample 3 arrives when the test permits it.
struct WaitingDataset {
  std::shared_future<void> permitted;
  [[nodiscard]] static std::int64_t size() { return 8; }
  [[nodiscard]] int get(std::int64_t index) const {
    if (index == 3) permitted.wait();
    return static_cast<int>(index);
  }
};

TEST(WorkersTest, ABatchThatDoesNotArriveIsAnErrorAfterTheTimeout) {
  for (const bool is_persistent : {false, true}) {
    std::promise<void> permit;
    int num_read = 0;
    {
      DataLoader loader(WaitingDataset{.permitted = permit.get_future().share()},
                        {.num_workers = 2, .timeout = 0.05, .persistent_workers = is_persistent});
      const auto read = [&] {
        for (auto& index : loader) num_read += static_cast<int>(index.size(0));
      };
      EXPECT_THAT(read,
                  ::testing::ThrowsMessage<Error>(::testing::HasSubstr("worker 1 has not read a batch for 0.05 s")));
    }
    EXPECT_EQ(num_read, 3);
    permit.set_value();  // the worker that was left behind ends
  }
}

// A loop that ends by break leaves batches that were read ahead. Their numbers are drawn, as in torch.
TEST(WorkersTest, PersistentWorkersContinueAfterABreak) {
  const GeneratorScope scope(make_generator(1));
  DataLoader loader(RandomDataset(),
                    {.batch_size = 1, .num_workers = 1, .prefetch_factor = 3, .persistent_workers = true});
  const auto stream = make_generator(static_cast<std::uint64_t>(draw_int64(make_generator(1))));
  numbers_of(loader, /*num_batches=*/2);
  for (int drawn = 0; drawn < 2 + 3; ++drawn) draw_int64(stream);
  const auto between = loader.state_dict();
  EXPECT_EQ(numbers_of(loader, 1).front().item<std::int64_t>(), draw_int64(stream));

  // A program that discards the rest of the epoch has the same numbers after resuming.
  DataLoader resumed(RandomDataset(),
                     {.batch_size = 1, .num_workers = 1, .prefetch_factor = 3, .persistent_workers = true});
  resumed.load_state_dict(unpack<Value>(pack(between)));
  numbers_of(resumed);
  loader.load_state_dict(unpack<Value>(pack(between)));
  numbers_of(loader);
  EXPECT_TRUE(torch::equal(torch::cat(numbers_of(resumed)), torch::cat(numbers_of(loader))));
}

TEST(WorkersTest, AStreamThatAThreadStillReadsIsNotReadAgain) {
  struct Stream {
    std::shared_future<void> permitted;
    void reset() {}
    std::optional<int> next() {
      permitted.wait();
      return std::nullopt;
    }
  };
  std::promise<void> permit;
  {
    DataLoader loader(Stream{.permitted = permit.get_future().share()}, {.num_workers = 1, .timeout = 0.05});
    const auto read = [&] {
      for (auto& batch : loader) static_cast<void>(batch);
    };
    EXPECT_THAT(read, ::testing::ThrowsMessage<Error>(::testing::HasSubstr("has not read a batch")));
    EXPECT_THAT(read, ::testing::ThrowsMessage<StateError>(::testing::HasSubstr("a worker still reads")));
  }
  permit.set_value();
}

// A stream that counts its reads, as one that has a generator advances it, and notes the count as a pass begins.
struct DelayedStream {
  struct Counts {
    int reads = 0;
    std::promise<int> at_second_pass = {};
  };
  std::chrono::milliseconds delay;
  std::shared_ptr<Counts> counts = std::make_shared<Counts>();  // used by one reader at a time
  std::int64_t place = 0;
  void reset() {
    if (counts->reads > 0) counts->at_second_pass.set_value(counts->reads);
    place = 0;
  }
  std::optional<std::int64_t> next() {
    if (place == 20) return std::nullopt;
    std::this_thread::sleep_for(delay);
    ++counts->reads;
    return place++;
  }
};

// However fast the thread is, a loop that is left has read the same samples when the next one begins.
TEST(WorkersTest, AStreamIsReadEquallyFarWhenALoopIsLeft) {
  const auto reads_before_next_pass = [](std::chrono::milliseconds delay, bool throws) {
    const DelayedStream stream{.delay = delay};
    DataLoader loader(stream, {.batch_size = 2, .num_workers = 1, .prefetch_factor = 3});
    try {
      for (const auto& batch : loader) {
        static_cast<void>(batch);
        if (throws) throw StateError("the loop fails");
        break;
      }
    } catch (const StateError&) {
    }
    for (const auto& batch : loader) {
      static_cast<void>(batch);
      break;
    }
    return stream.counts->at_second_pass.get_future().get();
  };
  for (const bool throws : {false, true}) {
    const int fast = reads_before_next_pass(std::chrono::milliseconds(0), throws);
    EXPECT_GE(fast, 2 * 3) << "as many batches as are prefetched";
    EXPECT_EQ(reads_before_next_pass(std::chrono::milliseconds(10), throws), fast);
  }
}

TEST(WorkersTest, OptionsThatNeedWorkersOrMakeNoSenseAreRefusedTogether) {
  const auto make = [] { DataLoader(RandomDataset(), {.timeout = 1, .persistent_workers = true}); };
  EXPECT_THAT(make, ::testing::ThrowsMessage<ArgumentError>(
                        ::testing::AllOf(::testing::HasSubstr("timeout: the rank's thread reads"),
                                         ::testing::HasSubstr("persistent_workers: there are no workers"))));
  EXPECT_THAT(
      [] { DataLoader(RandomDataset(), {.num_workers = 1, .timeout = -1}); },
      ::testing::ThrowsMessage<ArgumentError>(::testing::HasSubstr("timeout: expected 0 to 1000000000 s, got -1")));
  EXPECT_THROW(DataLoader(RandomDataset(), {.num_workers = 1, .timeout = INFINITY}), ArgumentError);
}

}  // namespace
}  // namespace accel

// The faults of Python's Accelerate in its data path, as recorded from it (faults.py), beside what we do in their place.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "properties/gen/accelerate_shards.hpp"
#include "reference/accelerator/accelerator.hpp"
#include "reference/core/errors.hpp"
#include "tests/support/run_ranks.hpp"

namespace accel::testing {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;
using Ids = std::vector<std::int64_t>;
using Batches = std::vector<Ids>;

// What Accelerate's ranks saw, rank by rank.
Json recorded(const std::string& fault) {
  std::ifstream in(std::string(std::getenv("ACCEL_SOURCE_DIR")) + "/properties/oracle/recorded/faults.jsonl");
  for (std::string line; std::getline(in, line);) {
    const auto json = Json::parse(line);
    if (json.value("fault", "") == fault) return json["expected"];
  }
  throw Error("nothing is recorded of " + fault);
}

// What our ranks see, on simulated ranks; real Gloo ranks must see the same.
template <typename Body>
auto seen_by_ranks(int num_ranks, AcceleratorOptions options, const Body& body) {
  const auto on_rank = [&](RankContext& rank) {
    Accelerator accelerator(options, rank);
    return body(accelerator);
  };
  const auto seen = collect_ranks(Backend::kSim, num_ranks, on_rank);
  EXPECT_EQ(seen, collect_ranks(Backend::kGlooThreads, num_ranks, on_rank));
  return seen;
}

Ids ids_of(const at::Tensor& tensor) { return {tensor.const_data_ptr<std::int64_t>(), tensor.const_data_ptr<std::int64_t>() + tensor.numel()}; }

template <typename Loader>
Batches batches_of(Loader&& loader) {
  Batches batches;
  for (auto& batch : loader) for_each_tensor(batch, [&](const at::Tensor& tensor) { batches.push_back(ids_of(tensor)); });
  return batches;
}

auto numbers(std::int64_t length) { return TensorDataset(at::arange(length)); }

// --- accumulation ---------------------------------------------------------------------------------------------------

std::vector<bool> cadence(Accelerator& accelerator, bool leaves) {
  torch::nn::Linear net(1, 1);
  auto [model, train, evaluation] = accelerator.prepare(net, DataLoader(numbers(12)), DataLoader(numbers(8)));
  std::vector<bool> synchronised;
  for ([[maybe_unused]] auto& unused : train) {
    const auto window = accelerator.accumulate(model);
    synchronised.push_back(accelerator.sync_gradients());
    accelerator.backward(model(at::ones({1, 1})).sum());
    if (synchronised.size() != 3) continue;
    for ([[maybe_unused]] auto& ignored : evaluation) {
      if (leaves) break;
    }
  }
  return synchronised;
}

TEST(RecordedFaultsTest, R3LeavingAnEvaluationCostsAcceleratesLastStepAndNotOurs) {
  const std::vector<bool> whole{false, false, false, true, false, true}, cut{false, false, false, true, false, false};
  for (const auto& rank : recorded("R3_cadence_around_an_evaluation")) {
    EXPECT_EQ(rank["read_to_its_end"], whole);
    EXPECT_EQ(rank["left_by_break"], cut);
  }
  for (const bool leaves : {true, false}) {
    const auto ours = seen_by_ranks(2, {.gradient_accumulation_steps = 4}, [&](Accelerator& accelerator) { return cadence(accelerator, leaves); });
    for (const auto& rank : ours) EXPECT_EQ(rank, whole);
  }
}

TEST(RecordedFaultsTest, R4AShortWindowIsDividedByTheWholeWindowHereAndThere) {
  const auto ours = seen_by_ranks(2, {.gradient_accumulation_steps = 4}, [](Accelerator& accelerator) {
    torch::nn::Linear net(torch::nn::LinearOptions(1, 1).bias(false));
    torch::optim::SGD sgd(net->parameters(), /*lr=*/0.0);
    auto [model, optimizer, batches] = accelerator.prepare(net, sgd, DataLoader(numbers(10)));
    std::vector<double> gradients;
    for ([[maybe_unused]] auto& unused : batches) {
      const auto window = accelerator.accumulate(model);
      accelerator.backward(model(at::ones({1, 1})).sum());
      if (accelerator.sync_gradients()) gradients.push_back(net->weight.grad().item<double>());
      optimizer.step();
      optimizer.zero_grad();
    }
    return gradients;
  });
  const std::vector<double> short_by_three_quarters{1.0, 0.25};
  for (const auto& rank : recorded("R4_short_window")) EXPECT_EQ(rank["gradients"], short_by_three_quarters);
  for (const auto& rank : ours) EXPECT_EQ(rank, short_by_three_quarters);
}

// --- metrics ----------------------------------------------------------------------------------------------------------

class SevenOfTen : public Sampler {
 public:
  [[nodiscard]] std::int64_t size() const override { return 7; }
  Ids begin_pass() override { return {9, 7, 5, 3, 1, 0, 2}; }
};

template <typename Loader>
Ids gathered_of(Accelerator& accelerator, Loader&& loader) {
  Ids gathered;
  for (auto& batch : loader) {
    for_each_tensor(accelerator.gather_for_metrics(batch), [&](const at::Tensor& tensor) {
      for (const auto id : ids_of(tensor)) gathered.push_back(id);
    });
  }
  return gathered;
}

TEST(RecordedFaultsTest, R5ASamplerOfAnotherLengthCostsAcceleratesMetricsASampleAndNotOurs) {
  for (const auto& rank : recorded("R5_sampler_of_another_length")) EXPECT_EQ(rank["gathered"], Ids({9, 7, 5, 3, 1, 0}));
  const auto ours = seen_by_ranks(2, {}, [](Accelerator& accelerator) {
    return gathered_of(accelerator, accelerator.prepare(DataLoader(numbers(10), {.batch_size = 2, .sampler = std::make_shared<SevenOfTen>()})));
  });
  for (const auto& rank : ours) EXPECT_EQ(rank, Ids({9, 7, 5, 3, 1, 0, 2}));
}

struct NumberStream {
  std::int64_t length = 0, place = 0;
  [[nodiscard]] std::int64_t size() const { return length; }
  void reset() { place = 0; }
  std::optional<std::int64_t> next() { return place < length ? std::optional(place++) : std::nullopt; }
};

TEST(RecordedFaultsTest, R6OneDispatchedSampleLeavesAcceleratesRanksWithoutARowAndNotOurs) {
  const auto theirs = recorded("R6_stream_of_one_sample");
  for (const int rank : {0, 1}) EXPECT_EQ(theirs[rank]["batches"], Batches({{0}}));
  for (const int rank : {2, 3}) EXPECT_EQ(theirs[rank]["batches"], Batches({{}}));
  EXPECT_EQ(recorded("R6_gather_of_one_sample"), "no answer");
  const auto ours = seen_by_ranks(4, {}, [](Accelerator& accelerator) {
    auto loader = accelerator.prepare(DataLoader(NumberStream{1}, {.batch_size = 4}));
    return std::pair(batches_of(loader), gathered_of(accelerator, loader));
  });
  for (const auto& rank : ours) EXPECT_EQ(rank, std::pair(Batches({{0}}), Ids({0})));
}

// --- sweeps over shards: the configurations of faults.py, through our loaders ----------------------------------------------

// A rank that has no peers to talk to: loaders in order need none.
class LoneRank {
 public:
  LoneRank(int rank, int num_ranks) {
    context_->rank = rank;
    context_->world_size = num_ranks;
  }
  template <typename Dataset>
  auto shard(Dataset dataset, DataLoaderOptions options, DataLoaderConfiguration config) {
    return DataLoaderShard(DataLoader(std::move(dataset), std::move(options)), {.context = context_.get(), .config = std::move(config)});
  }

 private:
  std::unique_ptr<RankContext> context_ = make_single_rank();
  RankScope scope_ = RankScope(*context_);
};

struct Shard {
  std::int64_t length, batch_size;
  int num_ranks;
  bool split;
};

// Every shard of the sweep; `splits` says whether a batch size is cut over that many ranks too.
template <typename Splits, typename Visit>
void sweep(const Splits& splits, const Visit& visit) {
  for (std::int64_t length = 0; length < 26; ++length) {
    for (std::int64_t batch_size = 1; batch_size <= 6; ++batch_size) {
      for (int num_ranks = 1; num_ranks <= 6; ++num_ranks) {
        for (const bool split : {false, true}) {
          if (!split || splits(batch_size, num_ranks)) visit(Shard{length, batch_size, num_ranks, split});
        }
      }
    }
  }
}

bool divides(std::int64_t batch_size, int num_ranks) { return batch_size % num_ranks == 0; }

TEST(RecordedFaultsTest, R8AcceleratesShardsMiscountTheirBatchesAndOursNever) {
  const auto theirs = recorded("R8_sweep_of_batch_sampler_shards").at(0);
  EXPECT_EQ(theirs, Json({{"configurations", 5200}, {"wrong_lengths", 245}}));  // and no wrong contents
  int configurations = 0, wrong_lengths = 0, wrong_contents = 0;
  sweep(divides, [&](const Shard& shard) {
    for (const int flags : {0, 1, 2, 3}) {
      const bool even = (flags & 1) != 0, drop_last = (flags & 2) != 0;
      ++configurations;
      for (int rank = 0; rank < shard.num_ranks; ++rank) {
        LoneRank lone(rank, shard.num_ranks);
        auto loader = lone.shard(numbers(shard.length), {.batch_size = shard.batch_size, .drop_last = drop_last},
                                 {.split_batches = shard.split, .even_batches = even});
        const auto batches = batches_of(loader);
        wrong_lengths += loader.size() != static_cast<std::int64_t>(batches.size());
        wrong_contents += batches != accelerate_shards({shard.length, shard.batch_size, shard.num_ranks, rank, shard.split, even, drop_last});
      }
    }
  });
  EXPECT_EQ(configurations, 5200);
  EXPECT_EQ(wrong_lengths, 0);
  EXPECT_EQ(wrong_contents, 0);
}

// A batch of one sample cannot be cut, and is cut all the same.
bool divides_or_is_one(std::int64_t batch_size, int num_ranks) { return batch_size == 1 || divides(batch_size, num_ranks); }

template <typename Visit>
void sweep_streams(const Visit& visit) {
  sweep(divides_or_is_one, [&](const Shard& shard) {
    for (const bool drop_last : {false, true}) visit(shard, drop_last);
  });
}

auto stream_shard(LoneRank& lone, const Shard& shard, bool drop_last) {
  return lone.shard(NumberStream{shard.length}, {.batch_size = shard.batch_size, .drop_last = drop_last},
                    {.split_batches = shard.split, .dispatch_batches = false});
}

TEST(RecordedFaultsTest, R7AStreamOfSingleSamplesCutOverRanksIsSilentlyEmptyThereAndAnErrorHere) {
  const auto theirs = recorded("R7_R9_sweep_of_iterable_shards").at(0);
  EXPECT_EQ(theirs["split_of_batch_size_1"], 125);
  EXPECT_EQ(theirs["empty"], 125);
  EXPECT_FALSE(theirs.contains("empty_elsewhere"));
  int refused = 0;
  sweep_streams([&](const Shard& shard, bool drop_last) {
    if (!shard.split || divides(shard.batch_size, shard.num_ranks) || shard.length == 0 || drop_last) return;
    try {
      LoneRank lone(0, shard.num_ranks);
      const auto loader = stream_shard(lone, shard, drop_last);
    } catch (const ArgumentError& error) {
      EXPECT_THAT(error.what(), HasSubstr("split_batches: a batch of 1 does not divide"));
      ++refused;
    }
  });
  EXPECT_EQ(refused, 125);
}

TEST(RecordedFaultsTest, R9AcceleratesSplitStreamsMiscountTheirSamplesAndOursNeverTheirBatches) {
  const auto theirs = recorded("R7_R9_sweep_of_iterable_shards").at(0);
  EXPECT_EQ(theirs["configurations"], 2860);
  EXPECT_EQ(theirs["wrong_lengths"], 1910);
  EXPECT_FALSE(theirs.contains("wrong_lengths_without_split"));
  int read = 0, wrong_lengths = 0, wrong_contents = 0;
  sweep_streams([&](const Shard& shard, bool drop_last) {
    if (shard.split && !divides(shard.batch_size, shard.num_ranks)) return;  // an error, see R7
    ++read;
    for (int rank = 0; rank < shard.num_ranks; ++rank) {
      LoneRank lone(rank, shard.num_ranks);
      auto loader = stream_shard(lone, shard, drop_last);
      const auto batches = batches_of(loader);
      wrong_lengths += loader.size() != static_cast<std::int64_t>(batches.size());
      wrong_contents += batches != accelerate_shards({shard.length, shard.batch_size, shard.num_ranks, rank, shard.split, /*even_batches=*/true, drop_last});
    }
  });
  EXPECT_EQ(read, 2860 - 2 * 26 * 5);
  EXPECT_EQ(wrong_lengths, 0);
  EXPECT_EQ(wrong_contents, 0);
}

}  // namespace
}  // namespace accel::testing

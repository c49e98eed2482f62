// Elastic training has the same bits on any number of ranks, simulated and over Gloo.
#include "reference/accelerator/elastic_run.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "reference/accelerator/accelerator.hpp"
#include "reference/optim/optimizers/fused_adam.hpp"
#include "reference/parallel/sync_batch_norm.hpp"
#include "reference/state/rng_sync.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing::elastic_run_test {
namespace {

namespace nn = torch::nn;
using ::testing::AllOf;
using ::testing::HasSubstr;

struct Job {
  int logical_ranks = 4, num_samples = 50, batch_size = 3;
  bool shuffle = true, drop_last = false;
  std::int64_t num_epochs = 2;
};

struct Outcome {
  std::vector<at::Tensor> state;  // parameters and buffers
  std::vector<double> losses;
  std::vector<std::int64_t> samples;  // that this rank has read
};

// Dropout, batch norm, a layer without a gradient in some steps, and noise that the loop draws.
struct NetImpl : nn::Module {
  NetImpl() {
    first = register_module("first", nn::Linear(5, 8));
    norm = register_module("norm", nn::BatchNorm1d(8));
    dropout = register_module("dropout", nn::Dropout(0.3));
    last = register_module("last", nn::Linear(8, 2));
    seldom = register_module("seldom", nn::Linear(8, 2));
  }
  at::Tensor forward(const at::Tensor& inputs, bool uses_seldom) {
    const auto hidden = dropout(at::relu(norm(first(inputs))));
    return uses_seldom ? last(hidden) + seldom(hidden) : last(hidden);
  }
  nn::Linear first{nullptr}, last{nullptr}, seldom{nullptr};
  nn::BatchNorm1d norm{nullptr};
  nn::Dropout dropout{nullptr};
};
TORCH_MODULE(Net);

struct Numbers {
  std::int64_t count;
  [[nodiscard]] std::int64_t size() const { return count; }
  [[nodiscard]] std::tuple<at::Tensor, at::Tensor> get(std::int64_t index) const {
    auto generator = make_generator(static_cast<std::uint64_t>(index) + 100);
    return {at::randn({5}, generator), at::full({}, index, at::kLong)};
  }
};

Outcome train(RankContext& rank, const Job& job) {
  Accelerator accelerator({}, rank);
  set_seed(7);
  Net net;
  optim::AdamW adamw(net->parameters(), optim::AdamWOptions{.lr = 0.05});
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  DataLoader loader(Numbers{job.num_samples},
                    {.batch_size = job.batch_size, .shuffle = job.shuffle, .drop_last = job.drop_last});
  Outcome outcome;
  // Other draws on each rank, which must not matter.
  for (int draw = 0; draw <= rank.rank; ++draw) torch::rand({1});
  if (rank.rank == 0) set_seed(8);
  accelerator.elastic({.logical_ranks = job.logical_ranks}, [&](ElasticRun& run) {
    for (auto& step : run.steps(loader, job.num_epochs)) {
      const bool uses_seldom = step.number() % 2 == 1;
      const auto loss = step.update(
          [&](auto& batch) {
            const auto& [inputs, indices] = batch;
            for (const auto index :
                 std::vector<std::int64_t>(indices.template const_data_ptr<std::int64_t>(),
                                           indices.template const_data_ptr<std::int64_t>() + indices.numel()))
              outcome.samples.push_back(index);
            const auto noise = 0.1 * torch::randn_like(inputs);
            return nn::functional::cross_entropy(model(inputs + noise, uses_seldom), indices.remainder(2));
          },
          [&] {
            accelerator.clip_grad_norm_(model.parameters(), 0.5);
            optimizer.step();
            optimizer.zero_grad();
          });
      outcome.losses.push_back(loss.template item<double>());
    }
  });
  for (const auto& parameter : net->parameters()) outcome.state.push_back(parameter.detach().clone());
  for (const auto& buffer : net->buffers()) outcome.state.push_back(buffer.clone());
  return outcome;
}

void expect_equal(const Outcome& one, const Outcome& other, const std::string& what) {
  EXPECT_EQ(one.losses, other.losses) << what;
  ASSERT_EQ(one.state.size(), other.state.size());
  for (std::size_t index = 0; index < one.state.size(); ++index)
    EXPECT_TRUE(at::equal(one.state[index], other.state[index])) << what << ", tensor " << index;
}

class ElasticRunTest : public ::testing::TestWithParam<Backend> {};
INSTANTIATE_TEST_SUITE_P(Backends, ElasticRunTest, ::testing::Values(Backend::kSim, Backend::kGlooThreads),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(ElasticRunTest, AnyNumberOfRanksHasTheSameBits) {
  std::mt19937 random(std::random_device{}());
  for (int count = 0; count < 4; ++count) {
    const Job job{.logical_ranks = 2 + static_cast<int>(random() % 9),
                  .num_samples = 20 + static_cast<int>(random() % 60),
                  .batch_size = 2 + static_cast<int>(random() % 3),
                  .shuffle = random() % 3 > 0,
                  .drop_last = random() % 3 == 0};
    const auto expected = collect_ranks(Backend::kSim, 1, [&](RankContext& rank) { return train(rank, job); }).front();
    for (const int num_ranks : {2, 3, 5}) {
      if (num_ranks > job.logical_ranks) continue;
      std::vector<std::int64_t> samples;
      for (const auto& outcome :
           collect_ranks(GetParam(), num_ranks, [&](RankContext& rank) { return train(rank, job); })) {
        expect_equal(outcome, expected,
                     fmt::format("{} logical ranks on {}, {} samples, batches of {}", job.logical_ranks, num_ranks,
                                 job.num_samples, job.batch_size));
        samples.insert(samples.end(), outcome.samples.begin(), outcome.samples.end());
      }
      EXPECT_THAT(samples, ::testing::UnorderedElementsAreArray(expected.samples));
    }
  }
}

// Every sample once in an epoch, and the first ones again to fill the last step.
TEST(ElasticOrderTest, AnEpochHasEverySampleOnceAndFillsItsLastStep) {
  const Job job{.logical_ranks = 4, .num_samples = 25, .batch_size = 3, .shuffle = false, .num_epochs = 1};
  const auto outcome = collect_ranks(Backend::kSim, 1, [&](RankContext& rank) { return train(rank, job); }).front();
  ASSERT_EQ(outcome.samples.size(), 36);
  for (std::int64_t row = 0; row < 36; ++row) EXPECT_EQ(outcome.samples[row], row % 25);
  EXPECT_EQ(outcome.losses.size(), 3);
}

TEST(ElasticRunErrorsTest, WrongUseIsRefusedWithAllProblems) {
  run_ranks(Backend::kSim, 3, [](RankContext& rank) {
    Accelerator accelerator({.gradient_accumulation_steps = 2}, rank);
    EXPECT_THAT(message_of<ConfigError>([&] { accelerator.elastic({.logical_ranks = 2}, [](ElasticRun&) {}); }),
                AllOf(HasSubstr("logical_ranks: 2 for 3 ranks"), HasSubstr("no model is prepared"),
                      HasSubstr("gradient_accumulation_steps: expected 1, got 2")));
  });
  // Ranks with different numbers of logical ranks would make different numbers of collectives.
  run_ranks(Backend::kSim, 2, [](RankContext& rank) {
    Accelerator accelerator({}, rank);
    nn::Sequential net(nn::Linear(5, 8), nn::BatchNorm1d(8));
    convert_sync_batchnorm(*net);
    auto model = accelerator.prepare(net);
    EXPECT_THAT(message_of<ConfigError>([&] { accelerator.elastic({.logical_ranks = 3}, [](ElasticRun&) {}); }),
                HasSubstr("SyncBatchNorm, whose statistics are of all ranks"));
  });
  run_ranks(Backend::kSim, 2, [](RankContext& rank) {
    Accelerator accelerator({}, rank);
    nn::Linear net(5, 2);
    auto model = accelerator.prepare(net);
    DataLoader loader(Numbers{20}, {.batch_size = 2, .num_workers = 1});
    auto prepared = accelerator.prepare(loader);
    accelerator.elastic({.logical_ranks = 2}, [&](ElasticRun& run) {
      EXPECT_THAT(message_of<ArgumentError>([&] { (void)run.steps(prepared); }),
                  AllOf(HasSubstr("the loader is prepared"), HasSubstr("num_workers: expected 0, got 1")));
    });
  });
}

}  // namespace
}  // namespace accel::testing::elastic_run_test

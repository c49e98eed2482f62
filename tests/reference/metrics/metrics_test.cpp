// Metrics on simulated ranks: every sample counts once, however a loader fills its last step; states are saved; wrong
// input is an error. properties/oracle/recorded_metrics_test.cpp has the values of Python's packages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/metrics.hpp>
#include <cmath>
#include <numeric>

#include "reference/accelerator/accelerator.hpp"
#include "sim/backend/simulate.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing::metrics_test {
namespace {

using ::testing::HasSubstr;

struct Samples {
  [[nodiscard]] std::int64_t size() const { return 29; }
  // Scores of three classes, and a class.
  [[nodiscard]] std::tuple<at::Tensor, at::Tensor> get(std::int64_t index) const {
    const auto number = static_cast<double>(index);
    return {torch::tensor({std::sin(number), std::cos(3 * number), std::sin(7 * number + 1)}),
            torch::tensor(index * index % 3, torch::kLong)};
  }
};

struct Values {
  double accuracy = 0, top_2 = 0, f1 = 0, auroc = 0, precision = 0, error = 0, correlation = 0;
  bool operator==(const Values&) const = default;
};

Values values_on(int num_ranks, const DataLoaderOptions& options) {
  std::vector<Values> of_ranks(num_ranks);
  sim::simulate({.num_ranks = num_ranks}, [&](RankContext& rank) {
    Accelerator accelerator({}, rank);
    auto batches = accelerator.prepare(DataLoader(Samples(), options));
    metrics::Accuracy accuracy({.num_classes = 3}), top_2({.num_classes = 3, .top_k = 2});
    metrics::FBeta f1({.num_classes = 3});
    metrics::Auroc auroc({.num_classes = 3});
    metrics::AveragePrecision precision({.num_classes = 3});
    metrics::MeanSquaredError error;
    metrics::PearsonCorrelation correlation;
    for (auto& batch : batches) {
      const auto [scores, targets] = metrics::own_rows(accelerator, batch);
      accuracy.update(scores, targets);
      top_2.update(scores, targets);
      f1.update(scores, targets);
      auroc.update(scores, targets);
      precision.update(scores, targets);
      error.update(scores.select(1, 0), scores.select(1, 1));
      correlation.update(scores.select(1, 0), scores.select(1, 2));
    }
    of_ranks[rank.rank] = {.accuracy = metrics::over_ranks(accuracy).compute(),
                           .top_2 = metrics::over_ranks(top_2).compute(),
                           .f1 = metrics::over_ranks(f1).compute(),
                           .auroc = metrics::over_ranks(auroc).compute(),
                           .precision = metrics::over_ranks(precision).compute(),
                           .error = metrics::over_ranks(error).compute(),
                           .correlation = metrics::over_ranks(correlation).compute()};
  });
  for (const auto& values : of_ranks) EXPECT_EQ(values, of_ranks.front());
  return of_ranks.front();
}

TEST(MetricsTest, EverySampleCountsOnceOnAnyNumberOfRanks) {
  const auto expected = values_on(1, {.batch_size = 29});
  for (const int num_ranks : {1, 2, 3, 8, 16}) {
    for (const bool shuffle : {false, true})
      EXPECT_EQ(values_on(num_ranks, {.batch_size = 4, .shuffle = shuffle}), expected) << num_ranks << " ranks";
  }
}

TEST(MetricsTest, AValueWithoutARowForEachSampleIsRefusedOnAStepWithDuplicates) {
  sim::simulate({.num_ranks = 2}, [&](RankContext& rank) {
    Accelerator accelerator({}, rank);
    auto batches = accelerator.prepare(DataLoader(Samples(), {.batch_size = 4}));
    bool is_refused = false;
    for (auto& [scores, targets] : batches) {
      try {
        EXPECT_EQ(metrics::own_rows(accelerator, scores.sum(0)).size(0), 3);
      } catch (const ArgumentError& error) {
        EXPECT_THAT(error.what(), HasSubstr("a value with 3 rows cannot be cut"));
        is_refused = true;
      }
    }
    EXPECT_EQ(is_refused, rank.rank == 1);  // whose last rows are the duplicates
  });
}

TEST(MetricsTest, AStateThatIsLoadedGoesOn) {
  metrics::Auroc auroc, loaded;
  metrics::R2Score r2, loaded_r2;
  const auto scores = torch::rand({20}, torch::kDouble), targets = torch::randint(0, 2, {20});
  auroc.update(scores.slice(0, 0, 12), targets.slice(0, 0, 12));
  r2.update(scores.slice(0, 0, 12), targets.slice(0, 0, 12).to(torch::kDouble));
  loaded.load_state_dict(unpack<Value>(pack(auroc.state_dict())));
  loaded_r2.load_state_dict(unpack<Value>(pack(r2.state_dict())));
  for (auto* one : {&auroc, &loaded}) one->update(scores.slice(0, 12), targets.slice(0, 12));
  for (auto* one : {&r2, &loaded_r2}) one->update(scores.slice(0, 12), targets.slice(0, 12).to(torch::kDouble));
  EXPECT_EQ(loaded.compute(), auroc.compute());
  EXPECT_EQ(loaded_r2.compute(), r2.compute());
  EXPECT_THROW(metrics::ConfusionMatrix(3).load_state_dict(metrics::ConfusionMatrix(4).state_dict()), ArgumentError);
  EXPECT_THROW(metrics::Auroc({.num_classes = 3}).load_state_dict(auroc.state_dict()), ArgumentError);
}

TEST(MetricsTest, WithoutSamplesTheyAreNan) {
  EXPECT_TRUE(std::isnan(metrics::Accuracy().compute()));
  EXPECT_TRUE(std::isnan(metrics::FBeta().compute()));
  EXPECT_TRUE(std::isnan(metrics::MatthewsCorrelation().compute()));
  EXPECT_TRUE(std::isnan(metrics::Auroc().compute()));
  EXPECT_TRUE(std::isnan(metrics::AveragePrecision().compute()));
  EXPECT_TRUE(std::isnan(metrics::MeanSquaredError().compute()));
  EXPECT_TRUE(std::isnan(metrics::R2Score().compute()));
  EXPECT_TRUE(std::isnan(metrics::PearsonCorrelation().compute()));
  EXPECT_TRUE(std::isnan(metrics::Perplexity().compute()));
}

// Means far from 0 leave no digits in an ordinary sum of squares.
TEST(MetricsTest, CorrelationsOfNumbersFarFromZeroKeepTheirDigits) {
  const auto x = torch::arange(1000, torch::kDouble) * 0x1p-20, y = x.cos();
  metrics::PearsonCorrelation near, far;
  near.update(x, y);
  far.update(x + 0x1p20, y + 0x1p20);
  EXPECT_NEAR(far.compute(), near.compute(), 1e-6);  // of which rounding y + 2^20 takes its part
  metrics::R2Score of_equal;
  of_equal.update(torch::tensor({1.0, 1.0}), torch::tensor({0.1, 0.1}));
  EXPECT_EQ(of_equal.compute(), 0);
}

TEST(MetricsTest, WrongInputIsOneErrorAndChangesNothing) {
  metrics::Accuracy accuracy({.num_classes = 3});
  accuracy.update(torch::tensor({0, 1}), torch::tensor({0, 2}));
  EXPECT_THAT(message_of<ArgumentError>([&] {
                accuracy.update(torch::rand({2, 4}), torch::rand({3}));
              }),
              AllOf(HasSubstr("predictions Float [2, 4]; expected classes of [n], or scores of [n, 3]"),
                    HasSubstr("targets Float [3]; expected classes of [n]")));
  EXPECT_THAT(message_of<ArgumentError>([&] {
                accuracy.update(torch::tensor({0, 1}), torch::tensor({0, 3}));
              }),
              HasSubstr("targets: a class of 3; expected 0 to 2"));
  EXPECT_THAT(message_of<ArgumentError>([&] { accuracy.update(torch::tensor({-1}), torch::tensor({0})); }),
              HasSubstr("predictions: a class of -1; expected 0 to 2"));
  EXPECT_EQ(accuracy.compute(), 0.5);
  EXPECT_THAT(message_of<ConfigError>([] { metrics::FBeta({.num_classes = 1, .average = "mean", .beta = 0}); }),
              AllOf(HasSubstr("average: expected micro, macro, weighted or binary, got 'mean'"),
                    HasSubstr("beta: expected above 0, got 0"), HasSubstr("num_classes: expected 2 or more, got 1")));
  EXPECT_THAT(message_of<ConfigError>([] { metrics::Accuracy({.num_classes = 3, .top_k = 3}); }),
              HasSubstr("top_k: expected 1 or more, and less than the 3 classes, got 3"));
  metrics::Auroc auroc;
  EXPECT_THAT(message_of<ArgumentError>([&] {
                auroc.update(torch::tensor({0.1, std::nan("")}), torch::tensor({0, 1}));
              }),
              HasSubstr("a score is NaN"));
  metrics::MeanSquaredError error;
  EXPECT_THAT(message_of<ArgumentError>([&] {
                error.update(torch::rand({2}), torch::rand({2, 1}));
              }),
              HasSubstr("expected floating, of equal sizes"));
  metrics::Perplexity perplexity(-100);
  EXPECT_THAT(message_of<ArgumentError>([&] {
                perplexity.update(torch::rand({2, 5}), torch::tensor({-100, 5}));
              }),
              HasSubstr("a token of 5; expected 0 to 4"));
}

}  // namespace
}  // namespace accel::testing::metrics_test

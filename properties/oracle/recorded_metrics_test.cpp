// Recorded answers of scikit-learn and torchmetrics, against ours, on several numbers of ranks, which do not change a
// bit.
#include <gtest/gtest.h>

#include <fstream>

#include "properties/gen/metric_values.hpp"
#include "sim/backend/simulate.hpp"

namespace accel::testing::recorded_metrics_test {
namespace {

using Json = nlohmann::json;

std::vector<Json> records() {
  std::ifstream in(std::string(std::getenv("ACCEL_SOURCE_DIR")) + "/properties/oracle/recorded/metrics.jsonl");
  std::vector<Json> records;
  for (std::string line; std::getline(in, line);) {
    if (auto record = Json::parse(line); !record.contains("recorded")) records.push_back(std::move(record));
  }
  return records;
}

void expect_near(const Json& ours, const Json& theirs, const Json& request) {
  constexpr double kTolerance = 1e-9;
  const bool is_near = ours.is_number_float() && theirs.is_number()
                           ? std::abs(ours.get<double>() - theirs.get<double>()) <=
                                 kTolerance * std::max(1.0, std::abs(theirs.get<double>()))
                           : ours == theirs;
  EXPECT_TRUE(is_near) << ours << " and " << theirs << " of " << request;
}

TEST(RecordedMetricsTest, ValuesAreThoseOfPythonOnAnyNumberOfRanks) {
  const auto all = records();
  ASSERT_GE(all.size(), 200);
  std::vector<Json> of_one;
  for (const int num_ranks : {1, 3, 8}) {
    std::vector<std::vector<Json>> values(num_ranks);
    sim::simulate({.num_ranks = num_ranks}, [&](RankContext& rank) {
      for (const auto& record : all) values[rank.rank].push_back(metric_value(record["request"]));
    });
    if (num_ranks == 1) {
      of_one = values[0];
      for (std::size_t index = 0; index < all.size(); ++index)
        expect_near(of_one[index], all[index]["expected"], all[index]["request"]);
    }
    for (const auto& of_rank : values) EXPECT_EQ(of_rank, of_one) << num_ranks << " ranks";
  }
}

}  // namespace
}  // namespace accel::testing::recorded_metrics_test

// Recorded answers of transformers' Mixtral, against a mixture of experts that 1 to 4 simulated ranks divide.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <fstream>

#include "properties/gen/mixture_values.hpp"
#include "tests/support/run_ranks.hpp"

namespace accel::testing::recorded_mixtures_test {
namespace {

using Json = nlohmann::json;

at::Tensor numbers(const Json& json) { return at::tensor(json.get<std::vector<float>>()); }

// Both compute in float32, in another order.
void expect_close(const Json& found, const Json& expected, const std::string& what) {
  EXPECT_TRUE(at::allclose(numbers(found), numbers(expected), 1e-5, 1e-5)) << what;
}

Json concatenated(const std::vector<Json>& answers, const char* key) {
  Json all = Json::array();
  for (const auto& answer : answers) all.insert(all.end(), answer[key].begin(), answer[key].end());
  return all;
}

TEST(RecordedMixturesTest, ValuesAndGradientsAreThoseOfMixtral) {
  std::ifstream in(std::string(std::getenv("ACCEL_SOURCE_DIR")) + "/properties/oracle/recorded/mixtures.jsonl");
  int compared = 0;
  for (std::string line; std::getline(in, line); ++compared) {
    const auto record = Json::parse(line);
    if (record.contains("recorded")) continue;  // how the file was made
    const auto &request = record["request"], &expected = record["expected"];
    for (const int ranks : {1, 2, 3, 4}) {
      SCOPED_TRACE("record " + std::to_string(compared) + ", " + std::to_string(ranks) + " ranks");
      if (request["num_experts"].get<int>() % ranks != 0) continue;
      const auto answers =
          collect_ranks(Backend::kSim, ranks, [&](RankContext& rank) { return mixture_values(rank, request); });
      expect_close(concatenated(answers, "values"), expected["values"], "values");
      expect_close(concatenated(answers, "values_gradient"), expected["values_gradient"], "values_gradient");
      for (const auto& answer : answers) {
        expect_close(answer["auxiliary_loss"], expected["auxiliary_loss"], "auxiliary_loss");
        for (const auto& [name, gradient] : expected["gradients"].items())
          expect_close(answer["gradients"][name], gradient, name);
      }
    }
  }
  EXPECT_GE(compared, 6);
}

}  // namespace
}  // namespace accel::testing::recorded_mixtures_test

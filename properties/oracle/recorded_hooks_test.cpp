// Recorded calls of Accelerate's hooks on random modules, against ours: their order, values and gradient modes.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <set>

#include "properties/oracle/answers.hpp"
#include "properties/oracle/recorded_faults.hpp"
#include "reference/modules/hooks.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing::recorded_hooks_test {
namespace {

std::vector<Json> read_records() {
  std::ifstream in(std::string(std::getenv("ACCEL_SOURCE_DIR")) + "/properties/oracle/recorded/hooks.jsonl");
  std::vector<Json> records;
  for (std::string line; std::getline(in, line);) {
    auto json = Json::parse(line);
    if (!json.contains("recorded")) records.push_back(std::move(json));
  }
  return records;
}

TEST(RecordedHooksTest, CallsAreThoseOfAccelerate) {
  const auto records = read_records();
  ASSERT_GE(records.size(), 40u);
  std::set<std::string> kinds;
  for (const auto& record : records) {
    EXPECT_EQ(hook_answer(record["request"]), record["expected"]) << record["request"].dump();
    for (const auto& event : record["expected"]["events"]) kinds.insert(event[0]);
  }
  EXPECT_EQ(kinds, (std::set<std::string>{"init", "pre", "post", "detach"}));
}

struct WithoutGradients : ModelHook {
  [[nodiscard]] bool no_grad() const override { return true; }
};

TEST(RecordedHooksTest, R11AccelerateLosesNoGradWhenAnotherHookIsAppended) {
  EXPECT_EQ(recorded("R11_no_grad_of_hooks").at(0).at("requires_grad"), Json({false, true}));
  torch::nn::Linear layer(2, 2);
  add_hook_to_module(*layer, std::make_shared<WithoutGradients>());
  add_hook_to_module(*layer, std::make_shared<ModelHook>(), {.append = true});
  EXPECT_FALSE(call(layer, torch::ones({1, 2})).requires_grad());
}

}  // namespace
}  // namespace accel::testing::recorded_hooks_test

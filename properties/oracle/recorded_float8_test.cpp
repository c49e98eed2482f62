// A layer in float8, forward and backward: recorded results of torchao against this library's.
#include <gmock/gmock.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "properties/oracle/recorded_faults.hpp"
#include "reference/accelerator/accelerator.hpp"
#include "reference/precision/autocast.hpp"
#include "reference/precision/float8_layers.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing::recorded_float8_test {
namespace {

using Json = nlohmann::json;

at::Tensor matrix_of(const Json& rows) {
  const auto of_rows = rows.get<std::vector<std::vector<float>>>();
  std::vector<at::Tensor> tensors;
  for (const auto& row : of_rows) tensors.push_back(torch::tensor(row));
  return at::stack(tensors);
}

at::Tensor vector_of(const Json& numbers) {
  return numbers.is_null() ? at::Tensor() : torch::tensor(numbers.get<std::vector<float>>());
}

// The configuration that a record's fields describe; absent fields have the recipe's values.
std::shared_ptr<const Float8LinearConfig> config_of(const Json& fields) {
  auto config = Float8LinearConfig::from_recipe_name(fields.value("recipe_name", "tensorwise"));
  config.pad_inner_dim = fields.value("pad_inner_dim", config.pad_inner_dim);
  config.emulate = fields.value("emulate", config.emulate);
  config.round_scales_to_power_of_2 = fields.value("round_scales_to_power_of_2", config.round_scales_to_power_of_2);
  return std::make_shared<const Float8LinearConfig>(config);
}

// The records use powers of two as scales, so sums are exact and every bit must agree.
TEST(RecordedFloat8Test, OutputsAndGradientsAreThoseOfTorchao) {
  std::ifstream in(std::string(std::getenv("ACCEL_SOURCE_DIR")) + "/properties/oracle/recorded/float8.jsonl");
  std::set<std::string> configs;
  for (std::string line; std::getline(in, line);) {
    const auto record = Json::parse(line);
    if (record.contains("recorded")) continue;  // how the file was made
    const auto &request = record["request"], &expected = record["expected"];
    const auto input = matrix_of(request["input"]).requires_grad_(),
               weight = matrix_of(request["weight"]).requires_grad_();
    auto bias = vector_of(request["bias"]);
    if (bias.defined()) bias.requires_grad_();
    at::Tensor output;
    {
      const Autocast scope({.enabled = request["autocast"]});
      output = float8_linear(input, weight, bias, config_of(request["config"]));
    }
    output.backward(matrix_of(request["grad_output"]).to(output.scalar_type()));
    const auto what = request["config"].dump() + (request["autocast"] ? " under autocast" : "");
    // The dtype follows autocast. Values are compared as float32, which holds every bfloat16 exactly.
    EXPECT_EQ(output.scalar_type(), expected["dtype"] == "bfloat16" ? at::kBFloat16 : at::kFloat) << what;
    EXPECT_TRUE(output.to(at::kFloat).equal(matrix_of(expected["output"]))) << what;
    EXPECT_TRUE(input.grad().equal(matrix_of(expected["grad_input"]))) << what;
    EXPECT_TRUE(weight.grad().equal(matrix_of(expected["grad_weight"]))) << what;
    if (bias.defined()) {
      EXPECT_TRUE(bias.grad().equal(vector_of(expected["grad_bias"]))) << what;
    }
    configs.insert(what);
  }
  // Nine configurations are recorded. Fewer would mean that the file was truncated.
  EXPECT_GE(configs.size(), 9U);
}

// The default recipe replaces the layers' weights by objects of another class, which the optimizer does not hold.
TEST(RecordedFloat8Test, R10AccelerateDoesNotTrainWeightsInFloat8) {
  const auto weights = [](auto& net) {
    std::vector<at::Tensor> all;
    for (const auto& item : net->named_parameters()) {
      if (item.key().ends_with("weight")) all.push_back(item.value().detach().clone());
    }
    return all;
  };
  // The first and last layer stay in full precision and are trained in Python too.
  EXPECT_EQ(recorded("R10_weights_in_float8")[0]["changed"], std::vector<bool>({true, false, false, true}));
  const auto rank = make_single_rank();
  Accelerator accelerator({.mixed_precision = "fp8"}, *rank);
  const auto layer = [] { return torch::nn::Linear(16, 16); };
  torch::nn::Sequential net(layer(), layer(), layer(), layer());
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  EXPECT_EQ(model.float8_layers(), std::vector<std::string>({"1", "2"}));
  const auto before = weights(net);
  accelerator.backward(model(at::randn({4, 16})).square().mean());
  optimizer.step();
  const auto after = weights(net);
  for (std::size_t i = 0; i < before.size(); ++i) EXPECT_FALSE(after[i].equal(before[i])) << i;
}

}  // namespace
}  // namespace accel::testing::recorded_float8_test

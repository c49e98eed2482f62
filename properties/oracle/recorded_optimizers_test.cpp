// Recorded runs of Python's optimizers against this library's. Plain `./dev test` needs no Python this way.
#include <gmock/gmock.h>

#include <fstream>

#include "properties/gen/optimizer_runs.hpp"
#include "properties/gen/value_json.hpp"
#include "reference/optim/optimizers/optimizers.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing::recorded_optimizers_test {
namespace {

using Json = nlohmann::json;

// CPUs with other vector widths round sums of products differently, by about 1e-16 in each of 30 steps. ASGD's rate
// is a float32, whose roots differ in the last bit between processors. Muon multiplies matrices in bfloat16, with a
// precision of 4e-3. live.py compares bits on one machine.
double tolerance_of(const Json& request) {
  const auto name = request["groups"][0]["optimizer"]["name"].get<std::string>();
  return name == "asgd" ? 1e-6 : name == "muon" ? 1e-2 : 1e-12;
}

std::vector<Json> read_records() {
  std::ifstream in(std::string(std::getenv("ACCEL_SOURCE_DIR")) + "/properties/oracle/recorded/optimizers.jsonl");
  std::vector<Json> records;
  for (std::string line; std::getline(in, line);) {
    auto record = Json::parse(line);
    if (!record.contains("recorded")) records.push_back(std::move(record));  // how the file was made
  }
  return records;
}

// Returns the first difference as a sentence, or "". Numbers without a fraction are floats here and ints in Python.
std::string difference(const Json& expected, const Json& answer, double tolerance,
                       const std::string& place = "answer") {
  if (expected.is_object() && expected.contains("hex")) {
    if (expected["dtype"] != answer.value("dtype", "") || expected["shape"] != answer["shape"])
      return place + " is another tensor: " + answer.dump();
    const bool close = tensor_of(expected).allclose(tensor_of(answer), tolerance, tolerance);
    return close ? "" : place + " has other values";
  }
  if (expected.is_number())
    return answer.is_number() && expected.get<double>() == answer.get<double>() ? "" : place + " is " + answer.dump();
  if (!expected.is_structured()) return expected == answer ? "" : place + " is " + answer.dump();
  if (expected.type() != answer.type() || expected.size() != answer.size())
    return place + " has other keys or another length: " + answer.dump().substr(0, 300);
  for (const auto& [key, value] : expected.items()) {
    if (expected.is_object() && !answer.contains(key)) return place + " lacks " + key;
    const auto& ours = expected.is_object() ? answer[key] : answer[std::stoul(key)];
    if (auto found = difference(value, ours, tolerance, place + "." + key); !found.empty()) return found;
  }
  return "";
}

TEST(RecordedOptimizersTest, ParametersAndStateDictsAreThoseOfPython) {
  std::set<std::string> names;
  for (const auto& record : read_records()) {
    EXPECT_EQ(difference(record["expected"], run_optimizer(record["request"]), tolerance_of(record["request"])), "")
        << record["request"];
    names.insert(record["request"]["groups"][0]["optimizer"]["name"]);
  }
  // Every optimizer of the table must be recorded, so a new one cannot be added without a comparison.
  optim::for_each_optimizer(
      [&](const auto& entry) { EXPECT_TRUE(names.contains(entry.experiment)) << entry.experiment; });
  EXPECT_TRUE(names.contains("sgd") && names.contains("lbfgs")) << "LibTorch's own";
}

}  // namespace
}  // namespace accel::testing::recorded_optimizers_test

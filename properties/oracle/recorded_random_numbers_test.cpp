// Recorded random numbers that Python's torch drew under Accelerate: only those kinds whose results do not depend
// on the instruction set of the CPU.
#include <fstream>
#include <nlohmann/json.hpp>

#include "properties/gen/random_numbers.hpp"
#include "tests/support/run_ranks.hpp"

namespace accel::testing::recorded_random_numbers_test {
namespace {

using Json = nlohmann::json;

std::vector<Json> read_records() {
  std::ifstream in(std::string(std::getenv("ACCEL_SOURCE_DIR")) + "/properties/oracle/recorded/random_numbers.jsonl");
  std::vector<Json> records;
  for (std::string line; std::getline(in, line);) {
    auto record = Json::parse(line);
    if (!record.contains("recorded")) records.push_back(std::move(record));  // how the file was made
  }
  return records;
}

std::vector<Json> listed(const std::vector<at::Tensor>& tensors) {
  std::vector<Json> numbers;
  for (const auto& tensor : tensors) {
    for (std::int64_t index = 0; index < tensor.numel(); ++index) {
      const auto number = tensor[index].item();
      numbers.push_back(number.isFloatingPoint() ? Json(number.toDouble()) : Json(number.toLong()));
    }
  }
  return numbers;
}

std::vector<Json> listed(const Json& recorded) {
  std::vector<Json> numbers;
  for (const auto& number : recorded) {
    // Strings are hexadecimal floats.
    numbers.push_back(number.is_string() ? Json(std::strtod(number.get<std::string>().c_str(), nullptr)) : number);
  }
  return numbers;
}

class RecordedRandomNumbersTest : public ::testing::TestWithParam<Backend> {};
INSTANTIATE_TEST_SUITE_P(Backends, RecordedRandomNumbersTest, ::testing::Values(Backend::kSim, Backend::kGlooThreads),
                         [](const auto& info) { return name_of(info.param); });

// Both backends must draw the same: the generator belongs to the rank, not to the process.
TEST_P(RecordedRandomNumbersTest, EveryRankDrawsWhatPythonDrew) {
  std::size_t compared = 0;
  for (const auto& record : read_records()) {
    const int num_ranks = record["ranks"];
    const auto request = parse_random_numbers_request(record["request"].dump());
    const auto drawn =
        collect_ranks(GetParam(), num_ranks, [&](RankContext& rank) { return random_numbers(rank, request); });
    for (int rank = 0; rank < num_ranks; ++rank) {
      for (const auto& [name, tensors] : drawn[rank]) {
        if (!record["expected"][rank].contains(name)) continue;
        const auto expected = listed(record["expected"][rank][name]);
        EXPECT_EQ(listed(tensors), expected)
            << name << " of rank " << rank << " of " << num_ranks << ", " << record["request"];
        compared += expected.size();
      }
    }
  }
  EXPECT_GT(compared, 9000U);
}

}  // namespace
}  // namespace accel::testing::recorded_random_numbers_test

// Recorded answers of the Python package `tokenizers`, against ours: every id and every decoded text.
#include <gtest/gtest.h>

#include <fstream>

#include "properties/gen/tokenizer_values.hpp"

namespace accel::testing::recorded_tokenizers_test {
namespace {

using Json = nlohmann::json;

TEST(RecordedTokenizersTest, IdsAndTextsAreThoseOfPython) {
  std::ifstream in(std::string(std::getenv("ACCEL_SOURCE_DIR")) + "/properties/oracle/recorded/tokenizers.jsonl");
  int compared = 0;
  for (std::string line; std::getline(in, line);) {
    const auto record = Json::parse(line);
    if (record.contains("recorded")) continue;  // how the file was made
    EXPECT_EQ(tokenizer_values(record["request"]), record["expected"]) << "record " << compared;
    ++compared;
  }
  EXPECT_GE(compared, 8);
}

}  // namespace
}  // namespace accel::testing::recorded_tokenizers_test

// Runs a model that is larger than the memory of the process, as counted by the kernel.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/programs/support/run_command.hpp"
#include "tests/support/budget.hpp"
#include "tests/support/temporary_folder.hpp"

namespace accel::testing::offload_memory_test {
namespace {

using ::testing::HasSubstr;

struct Size {
  std::int64_t width;
  int num_layers;
  std::int64_t limit_bytes;
  [[nodiscard]] std::int64_t bytes() const { return 4 * num_layers * (width * width + width); }
};

CommandResult limited_forward(const std::string& mode, const std::string& folder, const Size& size,
                              std::int64_t limit = 0) {
  std::vector<std::string> command{bin("limited-forward"), mode, folder, std::to_string(size.width),
                                   std::to_string(size.num_layers)};
  if (limit > 0) command.push_back(std::to_string(limit));
  return run_command(command, {.limit = std::chrono::seconds(500)});
}

nlohmann::json answer(const CommandResult& result) {
  EXPECT_EQ(result.exit_code, 0) << result.error;
  return result.exit_code == 0 ? nlohmann::json::parse(result.output) : nlohmann::json();
}

// 512 MB of weights in 128 MB by default; with --long 4 GB in 1 GB.
TEST(OffloadMemoryTest, AModelOfFourTimesTheMemoryComputesTheSameBits) {
  const bool is_long = num_cases(1) > 1;
  const Size size = is_long ? Size{4096, 64, std::int64_t{1} << 30} : Size{2048, 31, 128 << 20};
  ASSERT_GT(size.bytes(), is_long ? 4'000'000'000 : 512'000'000);
  const TemporaryFolder folder;
  ASSERT_EQ(limited_forward("write", folder.path("m"), size).exit_code, 0);

  const auto whole = answer(limited_forward("whole", folder.path("m"), size));
  // The limit must really prevent loading the full model, or the test proves nothing.
  const auto refused = limited_forward("whole", folder.path("m"), size, size.limit_bytes);
  EXPECT_EQ(refused.exit_code, 1) << "the limit has no effect";
  EXPECT_THAT(refused.error, HasSubstr("can't allocate memory"));

  const auto streamed = answer(limited_forward("streamed", folder.path("m"), size, size.limit_bytes));
  ASSERT_TRUE(whole.contains("output") && streamed.contains("output"));
  EXPECT_EQ(streamed["output"], whole["output"]);
  EXPECT_GT(streamed["prefetched"], 0);
  EXPECT_LT(streamed["anonymous_bytes"], size.limit_bytes);
  EXPECT_GT(whole["anonymous_bytes"], size.bytes());
  std::cout << size.bytes() << " bytes of weights, whole " << whole.dump() << ", in " << size.limit_bytes << " "
            << streamed.dump() << "\n";
}

}  // namespace
}  // namespace accel::testing::offload_memory_test

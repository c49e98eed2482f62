// The samples that benchmark programs write, and their comparison. No test depends on a time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/programs/support/bench_against.hpp"
#include "tests/programs/support/run_command.hpp"
#include "tests/support/temporary_folder.hpp"

namespace accel::testing::bench_samples_test {
namespace {

using ::testing::Each;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::SizeIs;

const std::string kRow = "all_reduce/sim/2_ranks/4_KiB";

class BenchSamplesTest : public ::testing::Test {
 protected:
  [[nodiscard]] std::string file() const { return folder_.path("numbers.json"); }
  [[nodiscard]] nlohmann::json numbers() const { return nlohmann::json::parse(std::ifstream(file())); }

  CommandResult compare(const std::string& rows) const {
    const auto folder = std::filesystem::path(bin("step_bench")).parent_path().string();
    return run_bench_against({"--before", folder, "--after", folder, "--rows", rows, "--blocks", "1", "--out", file()});
  }
  static CommandResult run_bench_against(const std::vector<std::string>& arguments) {
    auto command = bench_against();
    command.insert(command.end(), arguments.begin(), arguments.end());
    return run_command(command);
  }

 private:
  TemporaryFolder folder_;
};

TEST_F(BenchSamplesTest, TheFileHoldsEverySampleAndItsOrigin) {
  const auto run = run_command({bin("collectives_bench"), "--rounds", "3", "--commit", "abc123",
                                "--benchmark_filter=^" + kRow + "/", "--out", file()});
  ASSERT_EQ(run.exit_code, 0) << run.error;
  const auto json = numbers();
  for (const auto* field : {"cpu", "cores", "memory_gb", "kernel"})
    EXPECT_TRUE(json["machine"].contains(field)) << field;
  for (const auto* field : {"compiler", "date"}) EXPECT_FALSE(json[field].get<std::string>().empty()) << field;
  EXPECT_EQ(json["commit"], "abc123");
  EXPECT_THAT(json["command"].get<std::string>(), HasSubstr("--rounds 3"));
  ASSERT_THAT(json["rows"], SizeIs(1));
  const auto& row = json["rows"][0];
  EXPECT_EQ(row["name"], kRow);
  EXPECT_THAT(row["samples"].get<std::vector<double>>(), ::testing::AllOf(SizeIs(3), Each(Gt(0))));
}

// nccl-tests: the bus bandwidth of an all-reduce is 2 (n - 1) / n times bytes / time, which is equal for two ranks.
TEST_F(BenchSamplesTest, BandwidthsAreThoseOfNcclTests) {
  const auto run = run_command({bin("collectives_bench"), "--rounds", "1",
                                "--benchmark_filter=^(all_reduce|all_gather)/sim/(2|8)_ranks/4_KiB/", "--out", file()});
  ASSERT_EQ(run.exit_code, 0) << run.error;
  const auto json = numbers();
  ASSERT_THAT(json["rows"], SizeIs(4));
  const std::vector<double> factors{1, 0.5, 1.75, 0.875};
  for (std::size_t number = 0; number < factors.size(); ++number) {
    const auto& row = json["rows"][number];
    const double algorithm = row["algorithm_bandwidth_gb_per_s"], bus = row["bus_bandwidth_gb_per_s"];
    EXPECT_NEAR(algorithm, 4096 / row["median"].get<double>() / 1e9, 1e-9 * algorithm) << row["name"];
    EXPECT_NEAR(bus / algorithm, factors[number], 1e-9) << row["name"];
  }
}

// One block has six orders, so that nothing is significant and the result does not depend on the machine.
TEST_F(BenchSamplesTest, ABuildAgainstItselfIsNoRegression) {
  const auto run = compare("collectives_bench:all_reduce/sim/8_ranks/4_KiB");
  ASSERT_EQ(run.exit_code, 0) << run.error;
  EXPECT_THAT(run.output, HasSubstr("no difference"));
  const auto json = numbers();
  EXPECT_TRUE(json["machine"].contains("cpu"));
  EXPECT_FALSE(json["compiler"].get<std::string>().empty());
  ASSERT_THAT(json["rows"], SizeIs(1));
  EXPECT_THAT(json["rows"][0]["blocks"][0]["before"], SizeIs(2));
  EXPECT_THAT(json["rows"][0]["blocks"][0]["after"], SizeIs(2));
  EXPECT_GE(json["rows"][0]["p"].get<double>(), 0.3);
}

TEST_F(BenchSamplesTest, RowsThatDoNotExistAreAUsageError) {
  const auto none = compare("no_such_row");
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.error, HasSubstr("no row of both builds matches 'no_such_row'"));
  const auto wrong = compare("(");
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.error, HasSubstr("'(' is not a regular expression"));
}

TEST_F(BenchSamplesTest, AMissingBuildIsReported) {
  const auto run = run_bench_against({"--before", "/no-such-folder", "--after", "/no-such-folder"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.error, HasSubstr("/no-such-folder/step_bench"));
}

}  // namespace
}  // namespace accel::testing::bench_samples_test

// Files of constants: a user's values replace the shipped ones, and wrong ones are reported together.
#include "sim/predict/hardware.hpp"

#include <gmock/gmock.h>

#include "reference/core/errors.hpp"
#include "tests/support/temporary_folder.hpp"

namespace accel::predict::hardware_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Hardware read(const std::string& text) {
  const accel::testing::TemporaryFolder folder;
  return read_hardware(folder.write("hardware.yaml", text));
}

std::string problem_of(const std::string& text) {
  try {
    (void)read(text);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(HardwareTest, AFileReplacesItsValuesOnly) {
  const auto shipped = default_hardware();
  const auto mine =
      read("gpus: {h100_sxm5_80: {memory_gb_per_s: 3000}}\nlatencies: {step: 0}\nefficiency: {memory: 0.5}\n");
  EXPECT_EQ(mine.gpus.at("h100_sxm5_80").memory_bytes_per_second, 3000e9);
  EXPECT_EQ(mine.gpus.at("h100_sxm5_80").flops_bf16, shipped.gpus.at("h100_sxm5_80").flops_bf16);
  EXPECT_EQ(mine.latencies.step, 0);
  EXPECT_EQ(mine.latencies.kernel, shipped.latencies.kernel);
  EXPECT_EQ(mine.efficiency.memory, 0.5);
  EXPECT_EQ(mine.efficiency.network, shipped.efficiency.network);
}

TEST(HardwareTest, AGpuMayHaveItsOwnShareOfThePeak) {
  const auto mine = read("gpus: {h100_sxm5_80: {peak_bf16: 800, matmul_share: 0.5}}\n");
  EXPECT_DOUBLE_EQ(mine.gpus.at("h100_sxm5_80").rate_of(Precision::kBf16), 400e12);
}

TEST(HardwareTest, ANumberWrittenAsTextIsUnknown) {
  const auto mine = read("gpus: {h100_96_hbm2e: {peak_bf16: \"not published\", memory_gb: 90}}\nsources: {a: b}\n");
  EXPECT_EQ(mine.gpus.at("h100_96_hbm2e").flops_bf16, default_hardware().gpus.at("h100_96_hbm2e").flops_bf16);
  EXPECT_EQ(mine.gpus.at("h100_96_hbm2e").memory_bytes, 90.0 * (1 << 30));
}

TEST(HardwareTest, AGpuOfOnesOwnNeedsAllItsKeys) {
  EXPECT_THAT(problem_of("gpus: {mine: {peak_bf16: 100}}\n"),
              AllOf(HasSubstr("mine: memory_gb is missing"), HasSubstr("mine: sms is missing"),
                    HasSubstr("mine: nvlink_gb_per_s is missing"), HasSubstr("mine: generation")));
  const auto hardware = read(
      "gpus: {mine: {generation: hopper, peak_bf16: 500, memory_gb: 40, memory_gb_per_s: 2000, sms: 100, "
      "nvlink_gb_per_s: "
      "100}}\n");
  EXPECT_EQ(hardware.gpus.at("mine").rate_of(Precision::kFp8), hardware.gpus.at("mine").rate_of(Precision::kBf16));
}

TEST(HardwareTest, WrongValuesAreReportedTogether) {
  EXPECT_THAT(
      problem_of("gpus: {h200_sxm: {memory_gb: -1}}\nlatencies: {kernel: -2, nothing: 1}\nefficiency: {memory: 0}\n"),
      AllOf(HasSubstr("gpus.h200_sxm.memory_gb"), HasSubstr("latencies.kernel"), HasSubstr("latencies.nothing"),
            HasSubstr("efficiency.memory")));
}

TEST(HardwareTest, CurvesAreInterpolatedByTheLogarithm) {
  const Curve curve{.sizes = {10, 1000}, .values = {10, 30}};
  EXPECT_DOUBLE_EQ(curve.at(100), 20);
  EXPECT_DOUBLE_EQ(curve.at(1e4), 30);
  EXPECT_LT(curve.at(5), 10);
}

}  // namespace
}  // namespace accel::predict::hardware_test

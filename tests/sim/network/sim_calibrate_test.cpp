// sim-calibrate, as a user calls it: the file that it writes must predict the times that it printed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>

#include "sim/network/network.hpp"
#include "sim/predict/hardware.hpp"
#include "tests/programs/support/run_command.hpp"

namespace accel::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// A row of the printed table: measured and predicted time of one collective.
struct Line {
  int ranks = 0;
  std::int64_t bytes = 0;
  double measured_us = 0, model_us = 0;
};

std::vector<Line> lines_of(const std::string& table) {
  std::vector<Line> lines;
  std::istringstream in(table);
  for (std::string text; std::getline(in, text);) {
    std::istringstream fields(text);
    Line line;
    if (fields >> line.ranks >> line.bytes >> line.measured_us >> line.model_us) lines.push_back(line);
  }
  return lines;
}

// The file must contain what the table was computed from: loading it and predicting again has to give the same
// times.
TEST(SimCalibrateTest, TheWrittenFilePredictsThePrintedTimes) {
  const TemporaryFolder folder;
  const auto file = folder.path("here.yaml");
  const auto run =
      run_command({bin("sim-calibrate"), "--repeats", "2", "--out", file}, {.limit = std::chrono::seconds(300)});
  ASSERT_EQ(run.exit_code, 0) << run.error;
  EXPECT_THAT(run.output, HasSubstr("held-out times: median error"));
  auto network = sim::Network::load(file);
  EXPECT_EQ(network.spec().name, "here");
  const auto lines = lines_of(run.output);
  ASSERT_GE(lines.size(), 16U);
  for (const auto& line : lines) {
    std::vector<int> ranks(line.ranks);
    for (int rank = 0; rank < line.ranks; ++rank) ranks[rank] = rank;
    network.set_ranks(line.ranks);
    const auto ends = network.finish_times(0, {.op = Collective::kAllReduce, .bytes = line.bytes, .ranks = &ranks},
                                           std::vector<double>(line.ranks, 0));
    const double us = 1e6 * *std::max_element(ends.begin(), ends.end());
    EXPECT_NEAR(us, line.model_us, 0.1 + 0.002 * us) << line.bytes;  // rounding of the table and of the file
    EXPECT_GT(line.measured_us, 0);
  }
}

// A CPU stands for the GPU. Its rates replace those of the GPU, so the predicted step is slower.
TEST(SimCalibrateTest, AMeasuredDeviceIsPartOfAHardwareFile) {
  const TemporaryFolder folder;
  const auto file = folder.path("here.yaml");
  const auto run = run_command({bin("sim-calibrate"), "--gpu", "h100_sxm5_80", "--device", "cpu", "--out", file},
                               {.limit = std::chrono::seconds(300)});
  ASSERT_EQ(run.exit_code, 0) << run.error;
  std::ifstream in(file);
  const std::string hardware{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  for (const auto* key : {"matmul_share: ", "memory_gb_per_s: ", "kernel: "}) EXPECT_THAT(hardware, HasSubstr(key));
  const auto step_seconds = [](const std::vector<std::string>& options) {
    std::vector<std::string> command{bin("sim-run"), "predict", source("configs/sim/published_runs.yaml"), "--json"};
    command.insert(command.end(), options.begin(), options.end());
    const auto predicted = run_command(command);
    EXPECT_EQ(predicted.exit_code, 0) << predicted.error;
    const auto of_run = predicted.output.substr(predicted.output.find("dgxc-nemotron"));
    return std::stod(of_run.substr(of_run.find("step_seconds") + 14));
  };
  EXPECT_GT(step_seconds({"--hardware", file}), 10 * step_seconds({}));
}

// Gloo between processes stands for NCCL between GPUs.
TEST(SimCalibrateTest, MeasuredCollectivesArePartOfAHardwareFile) {
  const TemporaryFolder folder;
  for (const auto* ranks : {"2", "3"}) {
    const auto file = folder.path("here.yaml");
    const auto run = run_command({bin("sim-calibrate"), "--gpu", "h100_sxm5_80", "--device", "cpu", "--ranks", ranks,
                                  "--repeats", "2", "--out", file},
                                 {.limit = std::chrono::seconds(300)});
    ASSERT_EQ(run.exit_code, 0) << run.error;
    const auto measured = predict::read_hardware(file), shipped = predict::default_hardware();
    EXPECT_LT(measured.gpu("h100_sxm5_80").nvlink_bus_bytes_per_second,
              shipped.gpu("h100_sxm5_80").nvlink_bus_bytes_per_second / 10);
    EXPECT_GT(measured.gpu("h100_sxm5_80").nvlink_bus_bytes_per_second, 1e7);
    std::ifstream in(file);
    const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    for (const auto* key : {"ring_base: ", "ring_hop_nvlink: ", "tree_base: ", "tree_hop_nvlink: "})
      EXPECT_THAT(text, HasSubstr(key));
    EXPECT_EQ(measured.latencies.ring_hop_network, shipped.latencies.ring_hop_network);
  }
}

// Measuring takes minutes, so a file that cannot be written has to be found before.
TEST(SimCalibrateTest, WrongUsageIsExitTwoBeforeAnythingRuns) {
  for (const auto& options : std::vector<std::vector<std::string>>{{"--repeats", "1"},
                                                                   {"--oversubscribed", "1"},
                                                                   {"--sizes", "4"},
                                                                   {"--gpu", "mine", "--device", "tpu"},
                                                                   {"--ranks", "2"},
                                                                   {"--gpu", "h100_sxm5_80", "--ranks", "64"},
                                                                   {"--out", "/no/such/folder/x.yaml"},
                                                                   {"--out", "/tmp"}}) {
    auto command = options;
    command.insert(command.begin(), bin("sim-calibrate"));
    const auto run = run_command(command);
    EXPECT_EQ(run.exit_code, 2) << options[0] << ' ' << options[1];
    EXPECT_THAT(run.error, Not(HasSubstr("measuring")));
  }
}

}  // namespace
}  // namespace accel::testing

// The memory that sim-run layouts predicts is what ranks over Gloo need.
#include <nlohmann/json.hpp>

#include "tests/programs/support/bad_input.hpp"
#include "tests/support/budget.hpp"

namespace accel::testing::layouts_memory_test {
namespace {

using Json = nlohmann::ordered_json;
using Words = std::vector<std::string>;

constexpr int kRanks = 4;
const std::string kNetwork = "configs/sim/networks/nvlink_8.yaml";

struct Case {
  const char* file;
  Words size;  ///< of a model whose tensors are much larger than what a process needs besides
  Words tiny;  ///< of a model without tensors of note
  std::vector<std::string> layouts, more_layouts;  ///< those of each run, and those of long runs
};

// The layouts of `file` with these overrides.
Json layouts_of(const std::string& file, const Words& overrides, const std::string& axes) {
  Words command{bin("sim-run"), "layouts", "--ranks", std::to_string(kRanks), "--network", source(kNetwork),
                "--json",       "--axes",  axes};
  for (const auto& override : overrides) command.insert(command.end(), {"--set", override});
  command.push_back(source(file));
  const auto run = run_command(command, {.limit = std::chrono::minutes(2)});
  EXPECT_EQ(run.exit_code, 0) << run.output << run.error;
  return Json::parse(run.output, nullptr, /*allow_exceptions=*/false)["layouts"];
}

const Json& entry_of(const Json& layouts, const std::string& name) {
  const auto found =
      std::find_if(layouts.begin(), layouts.end(), [&](const auto& layout) { return layout["layout"] == name; });
  return found == layouts.end() ? throw std::runtime_error(name + " is not in " + layouts.dump()) : *found;
}

// The peak of a rank's memory over Gloo under the layout. Freed memory is returned at once, or it would count.
double peak_over_gloo(const Json& layout) {
  auto command = layout["command"].get<std::string>();
  const auto network = " --network " + source(kNetwork);
  command.replace(command.find(network), network.size(), " --backend gloo --quiet");
  command.replace(0, std::string("sim-run").size(), bin("sim-run"));
  // One sample per rank is evaluated, so that the peak is that of a training step.
  command += " --max-steps 3 --set sample= --set eval_batch_size=4 --set eval_limit=4";
  const auto run = run_command({"/bin/sh", "-c", command}, {.environment = {{"MALLOC_CONF", "dirty_decay_ms:0"}},
                                                            .limit = std::chrono::minutes(2)});
  EXPECT_EQ(run.exit_code, 0) << command << "\n" << run.error;
  return Json::parse(run.output)["peak_rss_bytes"].get<double>() / kRanks;
}

void expect_memory_of_gloo(const Case& test, const std::string& axes) {
  auto names = test.layouts;
  if (num_cases(1) > 1) names.insert(names.end(), test.more_layouts.begin(), test.more_layouts.end());
  const auto layouts = layouts_of(test.file, test.size, axes), tiny = layouts_of(test.file, test.tiny, axes);
  for (const auto& name : names) {
    const auto measured = peak_over_gloo(entry_of(layouts, name)) - peak_over_gloo(entry_of(tiny, name));
    EXPECT_NEAR(entry_of(layouts, name)["memory_bytes"].get<double>() / measured, 1, 0.1) << name;
  }
}

TEST(LayoutsMemoryTest, ATransformerNeedsThePredictedMemoryOverGloo) {
  expect_memory_of_gloo({.file = "configs/train/char_gpt.yaml",
                         .size = {"model.layers=4", "model.width=384", "model.heads=8", "model.block_size=128"},
                         .tiny = {"model.layers=1", "model.width=16"},
                         .layouts = {"dp_shard 4", "dp_shard 2 x tp 2"},
                         .more_layouts = {"dp_replicate 4", "tp 4", "cp 4", "dp_replicate 2 x dp_shard 2"}},
                        "dp_replicate,dp_shard,tp,cp");
}

TEST(LayoutsMemoryTest, AMixtureOfExpertsNeedsThePredictedMemoryOverGloo) {
  expect_memory_of_gloo({.file = "configs/train/char_mixtral.yaml",
                         .size = {"model.layers=4", "model.width=256", "model.feed_forward_width=512"},
                         .tiny = {"model.layers=1", "model.width=16", "model.feed_forward_width=16"},
                         .layouts = {"ep 4", "cp 4"},
                         .more_layouts = {"dp_replicate 4", "dp_shard 4", "tp 4", "dp_shard 2 x tp 2",
                                          "dp_replicate 2 x ep 2", "dp_shard 2 x ep 2"}},
                        "dp_replicate,dp_shard,tp,cp,ep");
}

}  // namespace
}  // namespace accel::testing::layouts_memory_test

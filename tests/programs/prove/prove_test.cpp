// sim-run prove: a correct model of divided layers equals one rank under every layout, and the mistakes of
// tests/programs/prove/proved_training.cpp are named with module, tensor, likely cause and collective.
#include <nlohmann/json.hpp>

#include "tests/programs/support/bad_input.hpp"
#include "tests/support/budget.hpp"

namespace accel::testing::prove_test {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

class ProveTest : public ExperimentFiles {
 protected:
  static CommandResult prove(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {bin("sim-run"), "prove"});
    return run_command(arguments, {.limit = std::chrono::seconds(120)});
  }
  // The outcome of each layout of a list for a program with this mistake.
  Json outcomes_of(const std::string& fault, const std::string& layouts) {
    const auto file = folder_.write("layouts.yaml", "[" + layouts + "]\n");
    const auto run = prove({"--ranks", "4", "--json", "--layouts", file, "--", bin("proved_training"), fault});
    EXPECT_EQ(run.exit_code, fault == "none" || fault.starts_with("right") ? 0 : 1) << fault << run.error;
    return Json::parse(run.output, nullptr, /*allow_exceptions=*/false);
  }
  Json outcome_of(const std::string& fault, const std::string& layout) {
    const auto json = outcomes_of(fault, layout);
    return json.is_array() && json.size() == 1 ? json[0] : Json::object();
  }
  TemporaryFolder folder_;
};

TEST_F(ProveTest, ACorrectModelEqualsOneRankUnderEveryLayout) {
  const auto run = prove({"--ranks", "4", "--", bin("proved_training")});
  EXPECT_EQ(run.exit_code, 0) << run.output << run.error;
  EXPECT_THAT(run.output, HasSubstr("tp 4: equal\n"));
  EXPECT_THAT(run.output, HasSubstr("dp_replicate 2 x tp 2: equal\n"));
  EXPECT_THAT(run.output, HasSubstr("tp 2 x ep 2: equal\n"));
  EXPECT_THAT(run.output, HasSubstr(" 0 different, 0 refused, 0 failed\n"));
}

// The gradient of a key's bias is rounding; positions are divided inside forward; other elements are dropped in every
// layout; the last evaluation batch is padded; an optimizer step ends a window.
TEST_F(ProveTest, RightProgramsRaiseNoAlarm) {
  for (const auto* program :
       {"right_adam", "right_dropout", "right_evaluation", "right_positions_inside", "right_accumulation"}) {
    const auto outcomes =
        outcomes_of(program, "{tp: 4}, {cp: 2, tp: 2}, {dp_replicate: 2, cp: 2}, {dp_replicate: 2, ep: 2}");
    EXPECT_EQ(outcomes.size(), 4U) << program;
    for (const auto& outcome : outcomes) EXPECT_EQ(outcome.value("verdict", ""), "equal") << program << outcome.dump();
  }
}

// The window of four micro-batches is longer than --max-steps.
TEST_F(ProveTest, WrongClippingAtTheEndOfAWindowIsFound) {
  const auto outcome = outcome_of("wrong_clipping", "{tp: 4}");
  EXPECT_EQ(outcome.value("verdict", ""), "different") << outcome.dump();
  EXPECT_EQ(outcome.value("tensor", ""), "stepped gradient") << outcome.dump();
}

// Its attention gathers keys under cp and exchanges heads under sp.
TEST_F(ProveTest, AGptEqualsOneRankUnderContextAndSequenceParallelism) {
  const auto file = folder_.write("layouts.yaml", "- {cp: 2, tp: 2}\n- {cp: 4}\n- {sp: 2, dp_replicate: 2}\n");
  const auto experiment = std::string(std::getenv("ACCEL_SOURCE_DIR")) + "/configs/train/char_gpt.yaml";
  const auto run =
      prove({"--ranks", "4", "--layouts", file, "--set", "limit=64", "--set", "eval_limit=16", experiment});
  EXPECT_EQ(run.exit_code, 0) << run.output << run.error;
  EXPECT_THAT(run.output, HasSubstr("3 layouts of 4 ranks: 3 equal, "));
}

// Its loss is an output of the model, and includes the auxiliary losses of the routers.
TEST_F(ProveTest, AMixtureOfExpertsEqualsOneRankUnderEveryLayout) {
  const auto experiment =
      std::string(std::getenv("ACCEL_SOURCE_DIR")) + "/tests/programs/experiments/without_python/gpt_experts.yaml";
  const auto run = prove({"--ranks", "4", experiment});
  EXPECT_EQ(run.exit_code, 0) << run.output << run.error;
  EXPECT_THAT(run.output, HasSubstr("tp 2 x ep 2: equal\n"));
  EXPECT_THAT(run.output, HasSubstr("cp 2 x ep 2: equal\n"));
  EXPECT_THAT(run.output, HasSubstr("14 layouts of 4 ranks: 14 equal, "));
}

struct Mistake {
  const char* name;
  const char* module;  // that is named
  const char* tensor;
  const char* cause;       // a part of the text
  const char* collective;  // the operation and the group, "missing" with what is missing, or "none"
  const char* layout = "{dp_replicate: 2, tp: 2}";
};

const Mistake kMistakes[] = {
    {"output_divided_by_tp", "feed_forward", "output", "1/2 of the expected value", "reduce_scatter tp"},
    {"bias_on_every_rank", "feed_forward", "output", "the bias is added 2 times", "reduce_scatter tp"},
    {"missing_reduction", "feed_forward", "output", "own part of a sum",
     "missing a reduction over tp after the output of module feed_forward.expansion"},
    {"missing_reduction_in_backward", "feed_forward", "input gradient", "own part of a sum",
     "missing a reduction over tp after the input gradient of module feed_forward.expansion"},
    {"reduced_twice", "feed_forward", "output", "over tp", "all_reduce tp"},
    {"norm_without_shared_parameter", "norm.weight", "gradient", "missing all-reduce over tp",
     "missing an all-reduce over tp of the gradient of norm.weight"},
    {"norm_reduced_twice", "norm.weight", "gradient", "2 times the expected value", "all_reduce tp"},
    {"wrong_part", "whole", "output", "other positions", "all_gather tp"},
    {"parts_in_reverse", "whole", "output", "other positions", "all_gather tp"},
    {"weights_drawn_per_part", "feed_forward.expansion.weight", "prepared parameter", "", "none"},
    {"slice_instead_of_reduce_scatter", "feed_forward", "output", "own part of a sum",
     "missing a reduction over tp after the output of module feed_forward.expansion"},
    {"gradient_gathered_twice", "output", "input gradient", "4 times the expected value", "all_gather tp", "{tp: 4}"},
    {"loss_times_tp", "", "loss", "4 times the expected value", "all_gather tp", "{tp: 4}"},
    {"loss_of_first_half", "", "loss", "", "all_reduce dp_cp"},
    {"averaged_input", "feed_forward.expansion", "output", "", "all_gather tp"},
    {"stale_weight", "feed_forward", "output", "", "reduce_scatter tp", "{tp: 4}"},
    {"gradient_scaled_by_dp", "output", "input gradient", "4 times the expected value", "all_reduce dp",
     "{dp_replicate: 4}"},
    {"missing_data_average", "", "gradient", "over", "missing an all-reduce over dp of the gradient of"},
    {"shifted_targets", "", "loss", "rank 0 has another loss for the same samples", "all_gather tp"},
    {"bias_of_another_part", "feed_forward", "output", "", "reduce_scatter tp"},
    {"shifted_after_the_cut", "", "loss", "", "all_reduce dp_cp", "{cp: 4}"},
    {"positions_within_the_part", "positions", "output", "the part of rank", "none", "{cp: 2, tp: 2}"},
    {"attention_to_own_keys", "attention", "output", "own positions",
     "missing an exchange of positions over cp after the output of module positions", "{cp: 4}"},
    {"keys_in_another_order", "attention", "output", "", "all_gather cp", "{cp: 4}"},
    {"key_gradients_of_own_queries", "attention", "input gradient", "", "reduce_scatter cp", "{cp: 4}"},
    {"mean_of_means", "", "loss", "own tokens", "missing an all-reduce of the numbers of tokens over dp_cp",
     "{dp_replicate: 2, cp: 2}"},
    {"expert_gradient_not_scaled", "mixture", "gradient",
     "2 times the expected value: reduced or counted once too often over ep", "all_reduce expert_dp",
     "{dp_replicate: 2, ep: 2}"},
    {"expert_gradient_scaled_twice", "mixture", "gradient", "1/2 of the expected value", "all_reduce expert_dp",
     "{dp_replicate: 2, ep: 2}"},
    {"experts_of_another_rank", "mixture", "output", "", "all_to_all ep", "{dp_replicate: 2, ep: 2}"},
    {"tokens_dropped_per_rank", "mixture", "output", "", "none", "{dp_replicate: 4}"},
};

// "all_reduce tp" for "all_reduce #7 of group tp (net.cpp:17)".
bool names_collective(const std::string& expected, const std::string& collective, const std::string& missing) {
  if (expected == "none") return collective.empty() && missing.empty();
  if (expected.starts_with("missing ")) return missing.starts_with(expected.substr(8));
  const auto space = expected.find(' ');
  return collective.starts_with(expected.substr(0, space)) &&
         (collective + " ").find(" of group " + expected.substr(space + 1) + " ") != std::string::npos;
}

TEST_F(ProveTest, MistakesAreNamedWithModuleTensorCauseAndCollective) {
  int found = 0, named = 0;
  for (const auto& mistake : kMistakes) {
    const auto outcome = outcome_of(mistake.name, mistake.layout);
    const auto text = [&](const char* key) { return outcome.contains(key) ? outcome[key].get<std::string>() : ""; };
    const bool is_found = text("verdict") == "different";
    const bool is_named = is_found && text("module").starts_with(mistake.module) && text("tensor") == mistake.tensor &&
                          text("cause").find(mistake.cause) != std::string::npos &&
                          names_collective(mistake.collective, text("collective"), text("missing"));
    found += is_found ? 1 : 0;
    named += is_named ? 1 : 0;
    if (!is_named) std::cout << mistake.name << ": " << outcome.dump() << '\n';
  }
  EXPECT_EQ(found, std::ssize(kMistakes));
  EXPECT_GE(named, std::ssize(kMistakes) - 2);
}

TEST_F(ProveTest, AProgramEndsAfterTheStepsThatAreCompared) {
  const auto file = folder_.write("layouts.yaml", "[{tp: 2}]\n");
  const auto verdict = [&](const char* steps) {
    const auto run = prove({"--ranks", "2", "--json", "--layouts", file, "--max-steps", steps, "--",
                            bin("proved_training"), "failing_second_step"});
    const auto json = Json::parse(run.output, nullptr, /*allow_exceptions=*/false);
    return json.is_array() ? json[0]["verdict"].get<std::string>() : run.error;
  };
  EXPECT_EQ(verdict("1"), "equal");
  EXPECT_EQ(verdict("2"), "failed");
}

// Whichever rank is first: an error of one rank before prepare refuses the layout, one after it fails.
TEST_F(ProveTest, AnErrorOfOneRankHasTheSameVerdictInEveryRun) {
  for (const auto& [program, verdict] :
       {std::pair("failing_before_prepare", "refused"), std::pair("failing_first_forward", "failed")}) {
    for (int run = 0; run < num_cases(2); ++run) {
      const auto outcomes = outcomes_of(program, "{dp_replicate: 2, tp: 2}, {tp: 4}, {dp_replicate: 4}");
      EXPECT_EQ(outcomes.size(), 3U);
      for (const auto& outcome : outcomes) EXPECT_EQ(outcome.value("verdict", ""), verdict) << outcome.dump();
    }
  }
}

TEST_F(ProveTest, WrongUsageIsRefusedWithAllProblems) {
  const auto run = prove({"--ranks", "1", "--max-steps", "0", "--against", "two"});
  EXPECT_EQ(run.exit_code, 2);
  for (const auto* text : {"--ranks: expected 2 to 256", "--max-steps: expected 1 or more", "--against: expected one",
                           "expected an experiment file or"})
    EXPECT_THAT(run.error, HasSubstr(text));
  const auto file = folder_.write("layouts.yaml", "- {tp: 3}\n- {tq: 2}\n");
  const auto layouts = prove({"--ranks", "4", "--layouts", file, "--", bin("proved_training")});
  EXPECT_EQ(layouts.exit_code, 2);
  EXPECT_THAT(layouts.error, HasSubstr("layouts.yaml:1: "));
  EXPECT_THAT(layouts.error, HasSubstr("expected 4, the world size"));
  EXPECT_THAT(layouts.error, HasSubstr("layouts.yaml:2: 1.tq: unknown key"));
}

}  // namespace
}  // namespace accel::testing::prove_test

// `sim-run check` on C++ programs: mistakes that people make, each found by the check that is meant for it, and the
// right programs. tests/backends/python/test_check.py has those of Python.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "reference/config/yaml_reader.hpp"
#include "tests/programs/support/run_command.hpp"

namespace accel::testing::check_test {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

struct Checked {
  int exit_code = 0;
  std::map<std::string, Json> results;  // by the name of the check
};

Checked check(const std::vector<std::string>& program, const std::vector<std::string>& options) {
  std::vector<std::string> command{bin("sim-run"), "check", "--json", "--quick"};
  command.insert(command.end(), options.begin(), options.end());
  command.emplace_back("--");
  command.insert(command.end(), program.begin(), program.end());
  const auto run = run_command(command, {.limit = std::chrono::seconds(600)});
  const auto summary = Json::parse(last_line(run.output), nullptr, /*allow_exceptions=*/false);
  if (!summary.is_object()) throw std::runtime_error(run.error + run.output);
  Checked checked{.exit_code = run.exit_code};
  for (const auto& result : summary["checks"]) checked.results[result["name"]] = result;
  return checked;
}

struct Mistake {
  const char* program;
  const char* name;
  const char* check;  // that finds it
  const char* text;   // a part of the cause
  const char* verdict = "fail";
};
void PrintTo(const Mistake& mistake, std::ostream* out) { *out << mistake.program << " " << mistake.name; }

constexpr Mistake kMistakes[] = {
    {"checked_classifier", "loader_not_prepared", "samples", "every rank reads all 200 samples"},
    {"checked_classifier", "gather_for_metrics_forgotten", "metrics", "use gather_for_metrics"},
    {"checked_classifier", "metric_not_gathered", "metrics", "nothing is gathered or reduced"},
    {"checked_classifier", "evaluation_on_the_main_process", "metrics", "only 1 of them evaluate"},
    {"checked_classifier", "schedule_of_one_ranks_part", "world_size", "the schedule steps too often"},
    {"checked_classifier", "accumulated_loss_not_divided", "world_size", "divide each loss by 2"},
    {"checked_classifier", "loss_divided_by_ranks", "world_size", "1/4 of it"},
    {"checked_classifier", "learning_rate_of_all_ranks", "world_size", "the learning rate follows the number of ranks",
     "finding"},
    {"checked_classifier", "every_rank_writes", "files", "write model.txt"},
    {"checked_classifier", "every_rank_prints", "files", "print 'epoch", "finding"},
    {"checked_classifier", "not_seeded", "deterministic", "not seeded"},
    {"checked_classifier", "a_rank_breaks", "calls", "calls differ"},
    {"checked_classifier", "stops_at_its_own_loss", "calls", "if the loss of rank 3 is 0"},
    {"checked_classifier", "a_nan_is_skipped", "calls", "if the loss of rank 3 is not a number"},
    {"checked_classifier", "equal_dropout", "random_streams", "all ranks draw the same random numbers", "finding"},
    {"checked_language_model", "set_epoch_forgotten", "samples", "call set_epoch"},
    {"checked_language_model", "workers_seeded_alike", "samples", "draw the same random numbers"},
    {"checked_language_model", "optimizer_forgotten", "resume", "the optimizer begins with another state"},
    {"checked_language_model", "optimizer_forgotten", "crash", "the next start fails"},
};

class CheckTest : public ::testing::TestWithParam<Mistake> {};
INSTANTIATE_TEST_SUITE_P(Mistakes, CheckTest, ::testing::ValuesIn(kMistakes),
                         [](const auto& info) { return std::string(info.param.name) + "_" + info.param.check; });

TEST_P(CheckTest, FindsTheMistake) {
  const auto& mistake = GetParam();
  auto checked = check({bin(mistake.program), mistake.name}, {"--only", mistake.check});
  const auto& result = checked.results[mistake.check];
  EXPECT_EQ(result["verdict"], mistake.verdict) << result;
  EXPECT_THAT(result["text"].get<std::string>(), HasSubstr(mistake.text));
  EXPECT_EQ(checked.exit_code, mistake.verdict == std::string("fail") ? 1 : 0);
}

// The page of all checks, and beside it that of a run which shows a failure.
TEST(CheckReportTest, HasAFigureOfEachFailure) {
  const TemporaryFolder folder;
  const auto page_of = [&](const std::string& mistake, const std::string& name) {
    const auto report = folder.path() + "/" + mistake;
    check({bin("checked_classifier"), mistake}, {"--only", name, "--report", report});
    return read_text(report + "/index.html");
  };
  EXPECT_THAT(page_of("loader_not_prepared", "samples"), HasSubstr("<svg"));
  EXPECT_THAT(page_of("loss_divided_by_ranks", "world_size"), HasSubstr("the first quantity that differs"));
  EXPECT_THAT(page_of("a_rank_breaks", "calls"), HasSubstr("href=\"calls/index.html\""));
  EXPECT_THAT(read_text(folder.path() + "/a_rank_breaks/calls/index.html"), HasSubstr("the ranks&#39; calls differ"));
}

class RightProgramTest : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Programs, RightProgramTest, ::testing::Values("checked_classifier", "checked_language_model"));

// All but the prediction apply to both, and the classifier does not resume.
TEST_P(RightProgramTest, PassesEveryCheck) {
  const auto checked = check({bin(GetParam())}, {"--skip", "scaling"});
  EXPECT_EQ(checked.exit_code, 0);
  for (const auto& [name, result] : checked.results) {
    EXPECT_NE(result["verdict"], "fail") << result;
    const bool saves = GetParam() == "checked_language_model";
    if (name != "resume" && name != "crash" && name != "metrics") {
      EXPECT_NE(result["verdict"], "not_applicable") << result;
    } else if (saves && name != "metrics") {
      EXPECT_EQ(result["verdict"], "pass") << result;
    }
  }
}

}  // namespace
}  // namespace accel::testing::check_test

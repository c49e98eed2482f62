// What our command lines add to CLI11: both spellings of option names, suggestions for misspelled options, and the
// list of options for shell completion.
#include "sim/programs/command_line/command_line.hpp"

#include <gmock/gmock.h>

#include <CLI/CLI.hpp>

#include "sim/programs/rehearsal/exit_code.hpp"

namespace accel::programs {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Arguments = std::vector<std::string>;

class CommandLineTest : public ::testing::Test {
 protected:
  CommandLineTest() {
    app_.add_option("--num_processes", number_);
    app_.add_option("--batch-size", number_);
    app_.add_flag("--even_batches,!--no-even-batches");
    app_.add_option("--pair", pair_)->expected(2);
    app_.add_subcommand("update")->add_option("--config_file", text_);
  }
  std::optional<int> parse(Arguments arguments) {
    std::vector<char*> pointers;
    arguments.insert(arguments.begin(), "program");
    for (auto& argument : arguments) pointers.push_back(argument.data());
    return parse_command_line(app_, static_cast<int>(pointers.size()), pointers.data());
  }

  CLI::App app_;
  int number_ = 0;
  std::vector<std::string> pair_;
  std::string text_;
};

// Accelerate's documentation uses both spellings.
TEST_F(CommandLineTest, AHyphenAndAnUnderscoreAreTheSame) {
  EXPECT_THAT(normalize_option_names(
                  // Values keep their hyphens; only names of options are normalized, and only those that are known.
                  app_, {"--num-processes", "4", "--batch_size=2-2", "--no_even-batches", "--other-one", "-x", "a-b"}),
              ElementsAre("--num_processes", "4", "--batch-size=2-2", "--no-even-batches", "--other-one", "-x", "a-b"));
  EXPECT_EQ(parse({"--num-processes=4"}), std::nullopt);
  EXPECT_EQ(number_, 4);
}

TEST_F(CommandLineTest, ValuesAreUnchanged) {
  // --pair takes two values, which look like options here.
  EXPECT_THAT(normalize_option_names(app_, {"--pair", "--num-processes", "--batch_size", "--num-processes"}),
              ElementsAre("--pair", "--num-processes", "--batch_size", "--num_processes"));
  EXPECT_THAT(normalize_option_names(app_, {"--", "--num-processes"}), ElementsAre("--", "--num-processes"));
}

// An option of the main command is an ordinary value after a subcommand.
TEST_F(CommandLineTest, ASubcommandHasItsOwnOptions) {
  EXPECT_THAT(normalize_option_names(app_, {"update", "--config-file", "--num-processes"}),
              ElementsAre("update", "--config_file", "--num-processes"));
  EXPECT_EQ(parse({"update", "--config-file", "a-b"}), std::nullopt);
  EXPECT_EQ(text_, "a-b");
}

// Everything after the program's name belongs to the program, even if it looks like an option.
TEST_F(CommandLineTest, ArgumentsOfAProgramAreUnchanged) {
  app_.prefix_command();
  EXPECT_THAT(normalize_option_names(app_, {"--num-processes", "4", "./train", "--batch_size", "2"}),
              ElementsAre("--num_processes", "4", "./train", "--batch_size", "2"));
}

// As compilers do it.
TEST_F(CommandLineTest, AMisspelledOptionIsAnsweredWithTheNearest) {
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(parse({"--num-proceses", "4"}), std::optional<int>(kUsage));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("--num-proceses: did you mean --num_processes?"));
}

// The completion scripts of shells read this output, so its form is fixed.
TEST_F(CommandLineTest, TheOptionsToCompleteAreListed) {
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(parse({kListOptions}), std::optional<int>(kSuccess));
  EXPECT_EQ(::testing::internal::GetCapturedStdout(),
            "\t--help --num_processes --batch-size --even_batches --no-even-batches --pair update \nupdate\t--help "
            "--config_file \n");
}

}  // namespace
}  // namespace accel::programs

#include "sim/programs/command_line/command_line.hpp"

#include <gmock/gmock.h>

#include <CLI/CLI.hpp>

#include "sim/programs/runtime/exit_code.hpp"

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

TEST_F(CommandLineTest, AHyphenAndAnUnderscoreAreTheSame) {
  EXPECT_THAT(normalize_option_names(
                  app_, {"--num-processes", "4", "--batch_size=2-2", "--no_even-batches", "--other-one", "-x", "a-b"}),
              ElementsAre("--num_processes", "4", "--batch-size=2-2", "--no-even-batches", "--other-one", "-x", "a-b"));
  EXPECT_EQ(parse({"--num-processes=4"}), std::nullopt);
  EXPECT_EQ(number_, 4);
}

TEST_F(CommandLineTest, ValuesAreLeftAsTheyAre) {
  EXPECT_THAT(normalize_option_names(app_, {"--pair", "--num-processes", "--batch_size", "--num-processes"}),
              ElementsAre("--pair", "--num-processes", "--batch_size", "--num_processes"));
  EXPECT_THAT(normalize_option_names(app_, {"--", "--num-processes"}), ElementsAre("--", "--num-processes"));
}

TEST_F(CommandLineTest, ASubcommandHasOptionsOfItsOwn) {
  EXPECT_THAT(normalize_option_names(app_, {"update", "--config-file", "--num-processes"}),
              ElementsAre("update", "--config_file", "--num-processes"));
  EXPECT_EQ(parse({"update", "--config-file", "a-b"}), std::nullopt);
  EXPECT_EQ(text_, "a-b");
}

TEST_F(CommandLineTest, AProgramsArgumentsAreItsOwn) {
  app_.prefix_command();
  EXPECT_THAT(normalize_option_names(app_, {"--num-processes", "4", "./train", "--batch_size", "2"}),
              ElementsAre("--num_processes", "4", "./train", "--batch_size", "2"));
}

TEST_F(CommandLineTest, AMisspeltOptionIsAnsweredWithTheNearest) {
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(parse({"--num-proceses", "4"}), std::optional<int>(kUsage));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("--num-proceses: did you mean --num_processes?"));
}

TEST_F(CommandLineTest, WhatThereIsToCompleteIsListed) {
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(parse({kListOptions}), std::optional<int>(kSuccess));
  EXPECT_EQ(::testing::internal::GetCapturedStdout(),
            "\t--help --num_processes --batch-size --even_batches --no-even-batches --pair update \nupdate\t--help "
            "--config_file \n");
}

}  // namespace
}  // namespace accel::programs

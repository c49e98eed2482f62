// Tests of the progress bar. Its text is compared with tqdm's form; what it draws is played into a small model of a
// terminal, as wrong cursor movements cannot be seen in the text.
#include "reference/tracking/progress.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <fstream>
#include <numeric>

#include "reference/state/rank_context.hpp"
#include "tests/reference/tracking/event_reader.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/torch.hpp"

namespace accel {
namespace {

using terminal::progress_text;
using terminal::Terminal;
using testing::Backend;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::run_ranks;
using testing::TemporaryFolder;

// The form is tqdm's, with a rate below one per second turned into seconds per step.
TEST(ProgressTextTest, ShowsShareCountTimesAndRate) {
  EXPECT_EQ(progress_text({.desc = "train", .done = 5, .total = 10, .seconds = 2, .postfix = "loss=0.3"}, 60),
            "train:  50%|###    | 5/10 [00:02<00:02,  2.50it/s, loss=0.3]");
  EXPECT_EQ(progress_text({.done = 0, .total = 3}, 40), "  0%|             | 0/3 [00:00<?, ?it/s]");
  EXPECT_EQ(progress_text({.done = 7, .seconds = 3700, .unit = "step"}, 80), "7step [1:01:40, 528.57s/step]");
  EXPECT_THAT(progress_text({.done = 3, .total = 3, .seconds = 1}, 40), HasSubstr("100%|###"));
  EXPECT_THAT(progress_text({.done = 4, .total = 3, .seconds = 1}, 40), HasSubstr("4/3 [00:01<?"));
}

// "ö" takes two bytes but one column. A line that is too long wraps, and the next drawing would leave rests behind.
TEST(ProgressTextTest, StaysWithinTheWidthInCharacters) {
  for (int width = 1; width < 120; ++width) {
    const auto text = progress_text({.desc = "größe", .done = 1, .total = 2, .seconds = 1}, width);
    const auto letters = std::count_if(text.begin(), text.end(),
                                       [](char byte) { return (static_cast<unsigned char>(byte) & 0xc0) != 0x80; });
    EXPECT_LE(letters, width) << text;
    if (width >= 50) {
      EXPECT_EQ(letters, width) << text;
    }
  }
}

// A terminal whose screen is computed from what was written: its lines and the place of the cursor.
struct Screen {
  TemporaryFolder folder;
  int descriptor = open(folder.write("screen", "").c_str(), O_WRONLY);
  Terminal terminal{descriptor};
  ~Screen() { close(descriptor); }

  [[nodiscard]] std::vector<std::string> lines() const {
    std::vector<std::string> lines(1);
    std::size_t row = 0, column = 0;
    const auto text = testing::read_file(folder.path("screen"));
    for (std::size_t place = 0; place < text.size(); ++place) {
      if (text[place] == '\n') {
        if (++row == lines.size()) lines.emplace_back();
        column = 0;
      } else if (text[place] == '\r') {
        column = 0;
      } else if (text[place] == '\x1b') {
        const auto end = text.find_first_of("AJ", place);
        if (text[end] == 'A')
          row -= static_cast<std::size_t>(std::stoi(text.substr(place + 2)));
        else
          lines.resize(row + 1), lines[row].resize(column);
        place = end;
      } else {
        lines[row].resize(std::max(lines[row].size(), column + 1), ' ');
        lines[row][column++] = text[place];
      }
    }
    return lines;
  }
};

// A line in the middle of a bar would be overwritten by its next drawing.
TEST(TerminalTest, LogLinesAppearAboveTheBars) {
  Screen screen;
  auto outer = screen.terminal.add_bar(), inner = screen.terminal.add_bar();
  outer->draw("outer 1");
  inner->draw("inner 1");
  screen.terminal.write_line("a line");
  inner->draw("inner 2");
  screen.terminal.write_line("another");
  EXPECT_THAT(screen.lines(), ElementsAre("a line", "another", "outer 1", "inner 2"));
  inner->keep(false);
  inner.reset();
  EXPECT_THAT(screen.lines(), ElementsAre("a line", "another", "outer 1"));
  outer->draw("done");
  outer.reset();
  screen.terminal.write_line("last");
  EXPECT_THAT(screen.lines(), ElementsAre("a line", "another", "done", "last", ""));
}

// Drawing is limited in time, so the last update might not be drawn.
TEST(ProgressBarTest, ShowsTheTotalAtTheEndAndStays) {
  Screen screen;
  {
    ProgressBar bar(screen.terminal, 1000, {.desc = "x"});
    for (int step = 0; step < 1000; ++step) bar.update();
  }
  const auto lines = screen.lines();
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_THAT(lines[0], HasSubstr("x: 100%|#"));
  EXPECT_THAT(lines[0], HasSubstr("1000/1000"));
  EXPECT_LT(testing::read_file(screen.folder.path("screen")).size(), 3000U) << "it is not drawn for every step";
}

// A log file would fill with carriage returns.
TEST(ProgressBarTest, IsOffIfStandardErrorIsNoTerminal) {
  ::testing::internal::CaptureStderr();
  run_ranks(Backend::kSim, 2, [](RankContext&) {
    auto bar = progress(3);
    bar.update(3);
  });
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

// Several bars of ranks on one terminal would overwrite each other, unless all are asked for.
TEST(ProgressBarTest, OneRankDrawsByDefault) {
  const auto bars = [](bool main_process_only) {
    ::testing::internal::CaptureStderr();
    run_ranks(Backend::kSim, 3, [&](RankContext& rank) {
      progress(
          2, {.desc = "bar of " + std::to_string(rank.rank), .main_process_only = main_process_only, .disable = false})
          .update(2);
    });
    return ::testing::internal::GetCapturedStderr();
  };
  const auto one = bars(true), all = bars(false);
  EXPECT_THAT(one, HasSubstr("bar of 0: 100%"));
  EXPECT_EQ(one.find("bar of 1"), std::string::npos);
  for (int rank = 0; rank < 3; ++rank) EXPECT_THAT(all, HasSubstr("bar of " + std::to_string(rank) + ": 100%"));
}

// Elements of an lvalue must stay references, and a temporary must live as long as the loop.
TEST(ProgressTest, IteratesOverARangeHeldByReferenceOrByValue) {
  const auto context = make_single_rank();
  std::vector<int> numbers{1, 2, 3};
  for (auto& number : progress(numbers, {.context = context.get()})) number *= 10;
  EXPECT_THAT(numbers, ElementsAre(10, 20, 30));
  int sum = 0;
  for (const int number : progress(std::vector<int>{4, 5}, {.context = context.get()})) sum += number;
  EXPECT_EQ(sum, 9);
}

// Without it the bar could show neither a share nor the remaining time.
TEST(ProgressTest, TheTotalIsTheSizeOfTheRange) {
  const auto context = make_single_rank();
  ::testing::internal::CaptureStderr();
  for ([[maybe_unused]] const int number :
       progress(std::vector<int>(7), {.disable = false, .context = context.get()})) {
  }
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("7/7 ["));
}

}  // namespace
}  // namespace accel

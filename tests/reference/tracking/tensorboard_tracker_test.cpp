// Tests of the TensorBoard tracker and of its helpers for images and YAML. The event files are decoded by
// event_reader.hpp; the comments at the numbers name the enumerators of TensorBoard's protocol buffers.
#include "reference/tracking/tensorboard_tracker.hpp"

#include <gmock/gmock.h>

#include <filesystem>

#include "reference/sources/image.hpp"
#include "reference/state/rank_context.hpp"
#include "reference/tracking/summary.hpp"
#include "reference/tracking/value_text.hpp"
#include "tests/reference/tracking/event_reader.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/torch.hpp"

namespace accel {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;
using testing::TemporaryFolder;
using testing::WireMessage;

// A tracker on one rank in which the run "mnist" has begun.
struct TensorBoardRun {
  TemporaryFolder folder;
  std::unique_ptr<RankContext> context = make_single_rank();
  TensorBoardTracker tracker{{.clock = [] { return 1000.5; }}};

  TensorBoardRun() { tracker.start({*context, "mnist", folder.path()}); }

  // The events of the only event file in a folder of the run, without the first, which holds the version.
  [[nodiscard]] std::vector<WireMessage> events(const std::string& subfolder = "") const {
    std::vector<WireMessage> all;
    for (const auto& entry : fs::directory_iterator(folder.path("mnist/" + subfolder))) {
      if (entry.is_regular_file() && entry.path().filename().string().starts_with("events."))
        all = testing::read_events(entry.path());
    }
    if (!all.empty()) all.erase(all.begin());
    return all;
  }
};

// Also booleans and tensors of one element.
TEST(TensorBoardTrackerTest, NumbersBecomeScalarsOfTheStep) {
  TensorBoardRun run;
  run.tracker.log({{"a", 0.5}, {"b", 3}, {"c", true}, {"d", torch::tensor(2.5)}}, 9);
  std::vector<std::pair<std::string, float>> scalars;
  for (const auto& event : run.events()) {
    EXPECT_EQ(event.number(2), 9U);
    const auto value = event.message(5).message(1);
    ASSERT_TRUE(value.numbers.contains(2));
    scalars.emplace_back(value.text(1), value.real32(2));
  }
  EXPECT_THAT(scalars,
              ElementsAre(std::pair("a", 0.5F), std::pair("b", 3.F), std::pair("c", 1.F), std::pair("d", 2.5F)));
}

// As the argument of SummaryWriter's methods. It applies to one call.
TEST(TensorBoardTrackerTest, TheOptionWalltimeReplacesTheTimeOfTheEvents) {
  TensorBoardRun run;
  run.tracker.log_with_kwargs({{"a", 1}, {"b", "text"}}, 1, {{"walltime", 7.25}});
  run.tracker.log({{"a", 2}}, 2);
  std::vector<double> times;
  for (const auto& event : run.events()) times.push_back(event.real(1));
  EXPECT_THAT(times, ElementsAre(7.25, 7.25, 1000.5));
}

// TensorBoard needs the name of its plugin for text in the event.
TEST(TensorBoardTrackerTest, AStringBecomesText) {
  TensorBoardRun run;
  run.tracker.log({{"note", "grüße"}}, std::nullopt);
  const auto value = run.events().at(0).message(5).message(1);
  EXPECT_EQ(value.text(1), "note/text_summary");
  EXPECT_EQ(value.message(8).number(1), 7U);  // DT_STRING
  EXPECT_EQ(value.message(8).text(8), "grüße");
  EXPECT_EQ(value.message(9).message(1).text(1), "text");
}

// As add_scalars() of PyTorch: each entry has its own folder, so that TensorBoard draws them in one chart.
TEST(TensorBoardTrackerTest, ADictBecomesOneCurvePerEntryUnderOneTag) {
  TensorBoardRun run;
  run.tracker.log({{"acc/top1", Value::Dict{{"train", 0.75}, {"test", 0.5}}}}, 1);
  run.tracker.log({{"acc/top1", Value::Dict{{"train", 0.875}}}}, 2);
  EXPECT_TRUE(run.events().empty());
  const auto train = run.events("acc_top1_train");
  ASSERT_EQ(train.size(), 2U);
  EXPECT_EQ(train[1].message(5).message(1).text(1), "acc/top1");
  EXPECT_EQ(train[1].message(5).message(1).real32(2), 0.875F);
  EXPECT_EQ(run.events("acc_top1_test").size(), 1U);
}

// One warning, not one for each step.
TEST(TensorBoardTrackerTest, ValuesTensorBoardCannotShowAreSkippedWithOneWarning) {
  TensorBoardRun run;
  ::testing::internal::CaptureStderr();
  for (int step = 0; step < 2; ++step) run.tracker.log({{"many", torch::ones({2})}, {"x", 1}}, step);
  const auto log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("omits 'many', which is a tensor"));
  EXPECT_EQ(log.find("omits"), log.rfind("omits"));
  EXPECT_EQ(run.events().size(), 2U);
}

// The three events of the plugin: experiment, start and end of a session.
TEST(TensorBoardTrackerTest, AConfigurationBecomesHparamsAndAFile) {
  TensorBoardRun run;
  run.tracker.store_init_configuration({{"lr", 1e-5}, {"name", "no"}, {"seed", Value()}, {"steps", 3}});
  const auto events = run.events("1000.5");
  ASSERT_EQ(events.size(), 3U);
  const auto plugin = [&](int event) { return events[event].message(5).message(1).message(9).message(1); };
  EXPECT_EQ(events[0].message(5).message(1).text(1), "_hparams_/experiment");
  EXPECT_EQ(plugin(0).text(1), "hparams");
  std::vector<std::pair<std::string, std::uint64_t>> infos;
  for (const auto& info : plugin(0).message(2).message(2).messages(4)) infos.emplace_back(info.text(1), info.number(4));
  EXPECT_THAT(infos, ElementsAre(std::pair("lr", 3U), std::pair("name", 1U), std::pair("steps", 3U)));
  const auto started = plugin(1).message(2).message(3).messages(1);
  ASSERT_EQ(started.size(), 3U);
  EXPECT_EQ(started[0].message(2).real(2), 1e-5);
  EXPECT_EQ(started[1].message(2).text(3), "no");
  EXPECT_EQ(plugin(2).message(2).message(4).number(1), 1U);  // STATUS_SUCCESS
  EXPECT_EQ(testing::read_file(run.folder.path("mnist/1000.5/hparams.yml")),
            "lr: 1.0e-05\nname: \"no\"\nseed: null\nsteps: 3\n");
}

// The hparams plugin has no such types.
TEST(TensorBoardTrackerTest, AConfigurationWithListsIsAnErrorThatNamesThem) {
  const TensorBoardTracker tracker;
  const auto message = message_of<ArgumentError>([&] {
    tracker.check_init_configuration({{"a", Value::List{1}}, {"b", 1}, {"c", Value::Dict{}}});
  });
  EXPECT_THAT(message, HasSubstr("'a' is a list, 'c' is a dict"));
}

// The pixels in the file are decoded and compared with the tensor.
TEST(TensorBoardTrackerTest, ImagesBecomeOnePng) {
  TensorBoardRun run;
  const auto images = torch::randint(0, 256, {3, 3, 4, 5}, torch::kByte);
  run.tracker.log_images({{"samples", images}}, 2);
  const auto image = run.events().at(0).message(5).message(1).message(4);
  EXPECT_EQ(image.number(1), 4U);
  EXPECT_EQ(image.number(2), 15U);
  EXPECT_EQ(image.number(3), 3U);
  EXPECT_TRUE(torch::equal(decode_image(image.text(4)), torch::cat({images[0], images[1], images[2]}, /*dim=*/2)));
}

// Eight images per row, as in torchvision's make_grid; the rest of the last row is black.
TEST(ImageGridTest, NineImagesBecomeARowOfEightAndARowOfOne) {
  const auto images = torch::arange(9, torch::kFloat).div(8).reshape({9, 1, 1, 1}).expand({9, 1, 2, 2});
  const auto picture = tracking::image_grid(images);
  ASSERT_THAT(picture.sizes().vec(), ElementsAre(4, 16, 3));
  EXPECT_EQ(picture[0][15][0].item<int>(), 223);  // 7/8 of 255, rounded down
  EXPECT_EQ(picture[3][1][2].item<int>(), 255);
  EXPECT_EQ(picture[2][2][0].item<int>(), 0);
}

// A missing batch dimension, two channels, no image, and integers that are not bytes.
TEST(ImageGridTest, TensorsThatAreNoBatchOfImagesAreErrors) {
  for (const auto& images : {torch::ones({3, 4, 4}), torch::ones({1, 2, 4, 4}), torch::ones({0, 3, 4, 4}),
                             torch::ones({1, 3, 4, 4}, torch::kLong)}) {
    EXPECT_THROW(tracking::image_grid(images), ArgumentError);
  }
}

// Unquoted, "true" would be read back as a boolean and "1e3" as a number. Python's yaml reads "on" as true.
TEST(HparamsYamlTest, StringsThatLookLikeOtherTypesAreQuoted) {
  const Value::Dict values{
      {"a", "true"}, {"b", "1e3"}, {"c", "adam"},    {"d", "x: y"},
      {"e", ""},     {"f", 2.0},   {"g", -INFINITY}, {"on", Value::List{1, "a b", Value::Dict{{"k", false}}}}};
  EXPECT_EQ(
      tracking::yaml_text(values),
      "a: \"true\"\nb: \"1e3\"\nc: adam\nd: \"x: y\"\ne: \"\"\nf: 2.0\ng: -.inf\n\"on\": [1, \"a b\", {k: false}]\n");
}

}  // namespace
}  // namespace accel

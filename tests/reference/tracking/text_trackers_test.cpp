// Tests of the trackers that write JSON lines and CSV tables. A run may be stopped at any time, even by a power
// failure, so the tests continue files that end in the middle of a line.
#include <gmock/gmock.h>

#include <cmath>

#include "reference/state/rank_context.hpp"
#include "reference/tracking/text_trackers.hpp"
#include "tests/reference/tracking/event_reader.hpp"
#include "tests/support/crash_disk.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/torch.hpp"

namespace accel {
namespace {

using testing::CrashDisk;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::PowerLost;
using testing::read_file;
using testing::TemporaryFolder;

// A folder with a run "mnist" in it.
struct Folder : TemporaryFolder {
  std::unique_ptr<RankContext> context = make_single_rank();
  GeneralTracker::Run run{*context, "mnist", path()};
};

// JSON has no NaN, so it becomes a string; line ends in texts are escaped.
TEST(JsonLinesTrackerTest, EveryLineIsAnObjectWithItsStepAndTime) {
  Folder folder;
  JsonLinesTracker tracker([] { return 12.5; });
  tracker.start(folder.run);
  tracker.store_init_configuration({{"layers", Value::List{1, 2}}});
  tracker.log(
      {{"acc", Value::Dict{{"train", 0.5}}}, {"loss", std::nan("")}, {"note", "a\"b\n"}, {"x", torch::tensor({1, 2})}},
      3);
  tracker.log({{"y", 1.0}}, std::nullopt);
  EXPECT_EQ(read_file(folder.path("mnist.jsonl")),
            "{\"config\": {\"layers\": [1, 2]}, \"time\": 12.5}\n"
            "{\"step\": 3, \"time\": 12.5, \"values\": {\"acc\": {\"train\": 0.5}, \"loss\": \"NaN\", \"note\": "
            "\"a\\\"b\\n\", \"x\": [1, 2]}}\n"
            "{\"step\": null, \"time\": 12.5, \"values\": {\"y\": 1.0}}\n");
}

// Appending to the truncated line would make both unreadable.
TEST(JsonLinesTrackerTest, ALaterRunKeepsCompleteLinesAndDropsATruncatedOne) {
  Folder folder;
  folder.write("mnist.jsonl", "{\"a\": 1}\n{\"b\":");
  JsonLinesTracker tracker([] { return 1.0; });
  tracker.start(folder.run);
  tracker.log({}, 2);
  tracker.finish();
  EXPECT_EQ(read_file(folder.path("mnist.jsonl")), "{\"a\": 1}\n{\"step\": 2, \"time\": 1.0, \"values\": {}}\n");
  EXPECT_THAT(folder.files(), ElementsAre("mnist.jsonl"));
}

// The table is rewritten with the new column; rows logged earlier get an empty field.
TEST(CsvTrackerTest, ColumnsMayAppearLater) {
  Folder folder;
  CsvTracker tracker;
  tracker.start(folder.run);
  tracker.log({{"loss", 0.5}}, 1);
  tracker.log({{"acc", Value::Dict{{"test", 0.25}}}, {"loss", 0.125}}, 2);
  tracker.log({{"note", "a, \"b\"\nc"}}, 3);
  tracker.log({{"loss", 1}}, std::nullopt);
  EXPECT_EQ(read_file(folder.path("mnist.csv")),
            "step,loss,acc/test,note\n1,0.5,,\n2,0.125,0.25,\n3,,,\"a, \"\"b\"\"\nc\"\n,1,,\n");
}

// A line end inside quotes does not end a row, so the last row cannot be found by searching for the last line end.
TEST(CsvTrackerTest, ALaterRunExtendsTheTableAndDropsATruncatedRow) {
  for (const std::string torn : {"", "3,", "3,\"a\nb", "3,\"a\nb\"", "3,\"a\"\""}) {
    Folder folder;
    folder.write("mnist.csv", "step,\"a,b\"\n1,\"x\ny\"\n" + torn);
    CsvTracker tracker;
    tracker.start(folder.run);
    tracker.log({{"a,b", 2}, {"c", 3}}, 5);
    tracker.finish();
    EXPECT_EQ(read_file(folder.path("mnist.csv")), "step,\"a,b\",c\n1,\"x\ny\",\n5,2,3\n") << torn;
  }
}

// Puts a table on the disk so that it survives a power failure.
void hold(CrashDisk& disk, const std::string& table) {
  disk.make_folder("runs");
  disk.sync_folder(".");
  write_atomically(disk, "runs/mnist.csv", table);
}

// Runs a tracker that adds a column to a table that the disk already holds. Returns the number of disk operations.
std::size_t widen_on(CrashDisk& disk, const std::string& table) {
  Folder folder;
  folder.context->files = std::shared_ptr<Files>(&disk, [](Files*) {});
  hold(disk, table);
  CsvTracker tracker;
  tracker.start({*folder.context, "mnist", "runs"});
  tracker.log({{"b", 1}}, 2);
  tracker.log({{"c", 1}}, 3);
  return disk.num_operations();
}

// Adding a column replaces the file. The power fails at each operation in turn; afterwards either the old or the
// new table must be there.
TEST(CsvTrackerTest, NoStoredRowIsLostInAPowerFailure) {
  const std::string table = "step,a\n1,2\n";
  CrashDisk whole;
  std::size_t num_written = 0;
  hold(whole, table);
  num_written = whole.num_operations();
  CrashDisk counting;
  const auto num_operations = widen_on(counting, table);
  ASSERT_GT(num_operations, num_written + 8);
  for (auto left = num_written; left < num_operations; ++left) {
    CrashDisk disk(left);
    EXPECT_THROW(widen_on(disk, table), PowerLost);
    const auto nothing = [](std::size_t) { return std::size_t{0}; };
    const auto all = [](std::size_t end) { return end; };
    const auto names_alone = [](std::size_t end) {
      return std::size_t{end == 1 ? 1U : 0U};
    };  // here the part that may be lost is longer than one byte
    for (const auto& found :
         {disk.after_power_loss(nothing), disk.after_power_loss(all), disk.after_power_loss(names_alone)}) {
      EXPECT_TRUE(found.at("runs/mnist.csv").starts_with("step,a")) << left;
      EXPECT_THAT(found.at("runs/mnist.csv"), HasSubstr("\n1,2")) << left;
    }
  }
}

// Two columns of the same name would be ambiguous.
TEST(CsvTrackerTest, AValueNamedStepIsUsedAsTheStepIfNoneIsGiven) {
  Folder folder;
  CsvTracker tracker;
  tracker.start(folder.run);
  tracker.log({{"step", 4}}, std::nullopt);
  EXPECT_THROW(tracker.log({{"step", 4}}, 4), ArgumentError);
  EXPECT_EQ(read_file(folder.path("mnist.csv")), "step\n4\n");
}

// A table has no place for it.
TEST(CsvTrackerTest, TheConfigurationIsStoredNextToTheTable) {
  Folder folder;
  CsvTracker tracker;
  tracker.start(folder.run);
  tracker.store_init_configuration({{"lr", 0.1}});
  EXPECT_EQ(read_file(folder.path("mnist.hparams.yml")), "lr: 0.1\n");
}

}  // namespace
}  // namespace accel

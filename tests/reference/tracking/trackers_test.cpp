// Tests of the list of trackers: choosing them by name, their calls in order, and what happens if one of them
// fails.
#include "reference/tracking/trackers.hpp"

#include <gmock/gmock.h>

#include <filesystem>

#include "reference/state/rank_context.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/torch.hpp"

namespace accel {
namespace {

using testing::Backend;
using testing::collect_ranks;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::message_of;
using testing::TemporaryFolder;

// Records the calls that it gets.
class Recorder : public GeneralTracker {
 public:
  explicit Recorder(bool main_only = true, std::string name = "recorder")
      : main_only_(main_only), name_(std::move(name)) {}
  [[nodiscard]] std::string name() const override { return name_; }
  [[nodiscard]] bool requires_logging_directory() const override { return false; }
  [[nodiscard]] bool main_process_only() const override { return main_only_; }
  void check_init_configuration(const Value::Dict& values) const override {
    check_argument(!values.contains("bad"), "bad");
  }
  void start(const Run& run) override { calls.push_back("start " + run.project_name); }
  void store_init_configuration(const Value::Dict& values) override {
    calls.push_back("config " + std::to_string(values.size()));
  }
  void log(const Value::Dict& values, std::optional<std::int64_t> step) override {
    calls.push_back("log " + std::to_string(values.size()) + " " + std::to_string(step.value_or(-1)));
  }
  void log_table(const std::string& table_name, const Table& table, std::optional<std::int64_t>) override {
    calls.push_back("table " + table_name + " " + std::to_string(table.data.size()));
  }
  void finish() override {
    calls.emplace_back("finish");
    if (fails) throw FileError("a.csv", "written", ENOSPC);
  }

  std::vector<std::string> calls;
  bool fails = false;

 private:
  bool main_only_;
  std::string name_;
};

// Names come from the command line or a file and are easily misspelled.
TEST(TrackersTest, AllProblemsAreOneErrorWithSuggestions) {
  const auto context = make_single_rank();
  const auto message = message_of<ConfigError>([&] { Trackers(*context, {"tensorbord", "cvs", "csv"}, std::nullopt); });
  EXPECT_THAT(message, HasSubstr("'tensorbord' is not a tracker; expected tensorboard, "));
  EXPECT_THAT(message, HasSubstr("'cvs' is not a tracker; expected csv, "));
  EXPECT_THAT(message, HasSubstr("csv writes files and requires a logging_dir"));
}

// A program written for Python names them. "is not a tracker" would send the reader in search of a typing error.
TEST(TrackersTest, EveryTrackerOfAccelerateThatIsLackingIsReportedWithAWayOut) {
  const auto context = make_single_rank();
  const auto message = message_of<ConfigError>([&] {
    Trackers(*context, {"wandb", "comet_ml", "aim", "clearml", "dvclive", "swanlab", "trackio"}, std::nullopt);
  });
  EXPECT_THAT(message,
              HasSubstr("'wandb' needs its Python package, which this library does not use; the format of its "
                        "offline runs is undocumented, so log to tensorboard and upload the folder with `wandb "
                        "sync --sync-tensorboard FOLDER`; 'comet_ml' needs"));
  for (const std::string name : {"comet_ml", "aim", "clearml", "dvclive", "swanlab", "trackio"})
    EXPECT_THAT(message, HasSubstr("'" + name +
                                   "' needs its Python package, which this library does not use; log to "
                                   "tensorboard, jsonl, csv or mlflow"));
}

// "csv" is also named separately, and must not be written twice. MLflow's folder is not the logging directory, so it
// must be named.
TEST(TrackersTest, TheNameAllMeansEachTrackerOfTheLoggingDirectoryOnce) {
  const TemporaryFolder folder;
  const auto context = make_single_rank();
  Trackers trackers(*context, {"csv", "all"}, folder.path());
  trackers.init_trackers("run");
  trackers.log({{"x", 1}}, 1);
  trackers.end_training();
  EXPECT_THAT(folder.files(), ::testing::UnorderedElementsAre("run", "run.csv", "run.jsonl"));
}

// Values logged before the run begins are ignored, as in Accelerate.
TEST(TrackersTest, ATrackerGetsItsCallsInOrder) {
  const auto context = make_single_rank();
  const auto recorder = std::make_shared<Recorder>();
  Trackers trackers(*context, {recorder}, std::nullopt);
  trackers.log({{"early", 1}});
  trackers.init_trackers("run", Value::Dict{{"lr", 1}});
  EXPECT_THROW(trackers.init_trackers("run"), StateError);
  trackers.log({{"x", 1}}, 5);
  trackers.end_training();
  trackers.end_training();
  trackers.log({{"late", 1}});
  EXPECT_THAT(recorder->calls, ElementsAre("start run", "config 1", "log 1 5", "finish"));
}

// On other ranks the calls do nothing, so a program needs no condition.
TEST(TrackersTest, OnlyRankZeroIsActiveUnlessATrackerAsksForAllRanks) {
  const auto calls = collect_ranks(Backend::kSim, 3, [](RankContext& rank) {
    const auto main = std::make_shared<Recorder>(true, "main"), all = std::make_shared<Recorder>(false, "all of them");
    Trackers trackers(rank, {main, all}, std::nullopt);
    trackers.init_trackers("run");
    trackers.log({}, 1);
    trackers.get_tracker("main").log({{"by hand", 1}}, 2);
    trackers.end_training();
    return std::pair(main->calls, all->calls);
  });
  EXPECT_THAT(calls[0].first, ElementsAre("start run", "log 0 1", "log 1 2", "finish"));
  for (int rank = 1; rank < 3; ++rank) EXPECT_THAT(calls[rank].first, IsEmpty());
  for (int rank = 0; rank < 3; ++rank) EXPECT_THAT(calls[rank].second, ElementsAre("start run", "log 0 1", "finish"));
}

// Only rank 0 writes, but if only rank 0 threw, the other ranks would continue and wait for it forever.
TEST(TrackersTest, ABadConfigurationIsAnErrorOnEveryRank) {
  const auto messages = collect_ranks(Backend::kSim, 2, [](RankContext& rank) {
    Trackers trackers(rank, {std::make_shared<Recorder>()}, std::nullopt);
    return message_of<ArgumentError>([&] { trackers.init_trackers("run", Value::Dict{{"bad", 1}}); });
  });
  EXPECT_THAT(messages, ElementsAre("bad", "bad"));
}

TEST(TrackersTest, OptionsOfNoKnownTrackerAreOneError) {
  const TemporaryFolder folder;
  const auto context = make_single_rank();
  Trackers trackers(*context, {"tensorboard", "csv"}, folder.path());
  const auto init = [&](const Value::Dict& kwargs) {
    return message_of<ConfigError>([&] { trackers.init_trackers("run", std::nullopt, kwargs); });
  };
  EXPECT_THAT(
      init({{"wandb", Value::Dict{}}, {"csv", 1}}),
      HasSubstr("csv: expected a dict of options, got a value of type int; wandb is not in log_with; add it there"));
  EXPECT_THAT(init({{"tensorboard", Value::Dict{{"flush_sec", 1}, {"purge_step", "x"}}}}),
              HasSubstr("tensorboard: flush_sec (int): unknown option"));
  EXPECT_EQ(init({{"tensorboard", Value::Dict{{"flush_secs", 60}, {"filename_suffix", ".a"}}}}), "");
}

// Options of the first run must not remain for the second.
TEST(TrackersTest, EveryRunHasItsOwnOptions) {
  const TemporaryFolder folder;
  const auto context = make_single_rank();
  Trackers trackers(*context, {"tensorboard"}, folder.path());
  for (const std::string suffix : {".a", ".b"}) {
    trackers.init_trackers("run" + suffix, std::nullopt, {{"tensorboard", Value::Dict{{"filename_suffix", suffix}}}});
    trackers.log({{"x", 1}}, 1);
    trackers.end_training();
  }
  for (const std::string suffix : {".a", ".b"}) {
    for (const auto& file : std::filesystem::directory_iterator(folder.path("run" + suffix)))
      EXPECT_THAT(file.path().string(), ::testing::EndsWith(suffix));
  }
  EXPECT_THAT(message_of<ConfigError>([&] {
                trackers.init_trackers("run", std::nullopt, {{"tensorboard", Value::Dict{{"tpyo", 1}}}});
              }),
              HasSubstr("tpyo"));
}

// Each tracker may still have data in memory, which finishing writes out.
TEST(TrackersTest, AFailingTrackerDoesNotStopTheOthersFromFinishing) {
  const auto context = make_single_rank();
  const auto failing = std::make_shared<Recorder>(), other = std::make_shared<Recorder>();
  failing->fails = true;
  Trackers trackers(*context, {failing, other}, std::nullopt);
  trackers.init_trackers("run");
  EXPECT_THROW(trackers.end_training(), FileError);
  EXPECT_THAT(other->calls, ElementsAre("start run", "finish"));
}

TEST(TrackersTest, AnUnknownTrackerIsReportedWithTheExistingOnes) {
  const auto context = make_single_rank();
  Trackers trackers(*context, {std::make_shared<Recorder>()}, std::nullopt);
  EXPECT_THAT(message_of<ArgumentError>([&] { (void)trackers.get_tracker("recorder"); }),
              HasSubstr("call init_trackers first"));
  trackers.init_trackers("run");
  EXPECT_EQ(trackers.get_tracker("recorder").name(), "recorder");
  EXPECT_THAT(message_of<ArgumentError>([&] { (void)trackers.get_tracker("wandb"); }),
              HasSubstr("'wandb' is not among the trackers of log_with: recorder"));
}

// Options of log are checked on every rank, because a rank that throws alone leaves the others waiting.
TEST(TrackersTest, WrongOptionsOfLogAreAnErrorOnEveryRank) {
  const TemporaryFolder folder;
  const auto messages = collect_ranks(Backend::kSim, 2, [&](RankContext& rank) {
    Trackers trackers(rank, {"tensorboard", "csv"}, folder.path());
    trackers.init_trackers("run");
    const auto log = [&](const Value::Dict& kwargs) {
      return message_of<ArgumentError>([&] { trackers.log({{"x", 1}}, 1, kwargs); });
    };
    EXPECT_EQ(log({{"tensorboard", Value::Dict{{"walltime", 5}}}}), "");
    EXPECT_THAT(log({{"jsonl", Value::Dict{}}, {"csv", 1}}),
                HasSubstr("csv: expected a dict of options, got a value of type int; jsonl is not in log_with"));
    EXPECT_THAT(log({{"csv", Value::Dict{{"a", 1}, {"b", 2}}}}), HasSubstr("csv: unexpected option a, b"));
    auto message = log({{"tensorboard", Value::Dict{{"walltime", "now"}, {"wall_time", 1}}}});
    trackers.end_training();
    return message;
  });
  for (const auto& message : messages)
    EXPECT_THAT(message, HasSubstr("tensorboard: wall_time (int), walltime (string): unknown option or wrong type"));
}

// As hasattr of Python's trackers: only MLflow has artifacts, and none that writes files has tables.
TEST(TrackersTest, AMethodThatATrackerLacksIsAnErrorThatNamesBoth) {
  const TemporaryFolder folder;
  const auto messages = collect_ranks(Backend::kSim, 2, [&](RankContext& rank) {
    const auto recorder = std::make_shared<Recorder>();
    Trackers trackers(rank, {"tensorboard", recorder}, folder.path());
    trackers.init_trackers("run");
    trackers.get_tracker("recorder").log_table("samples", {.columns = {"a", "b"}, .data = {{1, "x"}, {2, "y"}}}, 3);
    if (rank.rank == 0)
      EXPECT_THAT(recorder->calls, ElementsAre("start run", "table samples 2"));
    else
      EXPECT_THAT(recorder->calls, IsEmpty());
    auto& tracker = trackers.get_tracker("tensorboard");
    const std::vector<std::string> messages{
        message_of<ArgumentError>([&] { tracker.log_table("samples", {}, std::nullopt); }),
        message_of<ArgumentError>([&] { tracker.log_figure({}, "a.png"); }),
        message_of<ArgumentError>([&] { tracker.log_artifact("a.bin"); }),
        message_of<ArgumentError>([&] { tracker.log_artifacts("folder"); })};
    trackers.end_training();
    return messages;
  });
  EXPECT_THAT(messages[0],
              ElementsAre(HasSubstr("log_table: the tracker tensorboard lacks it; log the cells"),
                          HasSubstr("log_figure: the tracker tensorboard lacks it; use log_images"),
                          HasSubstr("log_artifact: the tracker tensorboard lacks it; use the tracker mlflow"),
                          HasSubstr("log_artifacts: the tracker tensorboard lacks it")));
  EXPECT_THAT(messages[1], ElementsAre("", "", "", ""));
}

// Adds a prefix to all names; another tracker does the work.
class Prefixed : public GeneralTracker {
 public:
  [[nodiscard]] std::string name() const override { return "prefixed"; }
  [[nodiscard]] bool requires_logging_directory() const override { return false; }
  void log(const Value::Dict& values, std::optional<std::int64_t> step) override {
    for (const auto& [name, value] : values) recorder.log({{"my/" + name, value}}, step);
  }
  GeneralTracker& tracker() override { return recorder; }

  Recorder recorder;
};

TEST(TrackersTest, UnwrapReturnsTheTrackerThatATrackerWraps) {
  const auto context = make_single_rank();
  const auto prefixed = std::make_shared<Prefixed>();
  Trackers trackers(*context, {prefixed, std::make_shared<Recorder>()}, std::nullopt);
  trackers.init_trackers("run");
  EXPECT_EQ(&trackers.get_tracker("prefixed"), prefixed.get());
  EXPECT_EQ(&trackers.get_tracker("prefixed", {.unwrap = true}), &prefixed->recorder);
  EXPECT_EQ(&trackers.get_tracker("recorder", {.unwrap = true}), &trackers.get_tracker("recorder"));
}

}  // namespace
}  // namespace accel

// Tests of the MLflow tracker. The expected files are those that MLflow 3.17 writes for the same calls of Python's
// tracker; MLflow's client reads these folders.
#include "reference/tracking/mlflow_tracker.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <yaml-cpp/yaml.h>

#include <filesystem>

#include "reference/config/environment.hpp"
#include "reference/sources/image.hpp"
#include "reference/state/rank_context.hpp"
#include "reference/tracking/trackers.hpp"
#include "tests/reference/tracking/event_reader.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/torch.hpp"

namespace accel {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using testing::message_of;
using testing::read_file;
using testing::TemporaryFolder;

// A run of the experiment "squares" in the folder "store".
struct MlflowTest : ::testing::Test {
  TemporaryFolder folder;
  std::unique_ptr<RankContext> context = make_single_rank();
  MLflowTracker::Options options{.folder = folder.path("store"), .clock = [] { return 1000.5; }};

  // The folders of runs in the only experiment.
  [[nodiscard]] std::vector<fs::path> runs() const {
    std::vector<fs::path> all;
    for (const auto& experiment : fs::directory_iterator(folder.path("store"))) {
      for (const auto& entry : fs::directory_iterator(experiment)) {
        if (fs::exists(entry.path() / "meta.yaml")) all.push_back(entry.path());
      }
    }
    return all;
  }
  [[nodiscard]] fs::path run() const { return runs().at(0); }
  [[nodiscard]] std::string text(const std::string& file) const { return read_file((run() / file).string()); }
  MLflowTracker started() {
    MLflowTracker tracker(options);
    tracker.start({*context, "squares", ""});
    return tracker;
  }
};

// MLflow's client finds runs by these files, and compares the ids in them with the names of the folders.
TEST_F(MlflowTest, ARunHasTheFilesThatMlflowReads) {
  options.run_name = "first";
  options.tags = {{"kind", "test"}};
  options.description = "a run";
  auto tracker = started();
  auto meta = YAML::LoadFile((run() / "meta.yaml").string());
  EXPECT_THAT(run().filename().string(), MatchesRegex("[0-9a-f]{32}"));
  EXPECT_EQ(meta["run_id"].as<std::string>(), run().filename().string());
  EXPECT_EQ(meta["experiment_id"].as<std::string>(), run().parent_path().filename().string());
  EXPECT_EQ(meta["artifact_uri"].as<std::string>(), "file://" + (run() / "artifacts").string());
  EXPECT_EQ(meta["start_time"].as<int>(), 1000500);
  EXPECT_EQ(meta["status"].as<int>(), 1);
  EXPECT_TRUE(meta["end_time"].IsNull());
  tracker.finish();
  meta = YAML::LoadFile((run() / "meta.yaml").string());
  EXPECT_EQ(meta["status"].as<int>(), 3);
  EXPECT_EQ(meta["end_time"].as<int>(), 1000500);
  EXPECT_EQ(text("tags/mlflow.runName"), "first");
  EXPECT_EQ(text("tags/mlflow.note.content"), "a run");
  EXPECT_EQ(text("tags/kind"), "test");
  const auto experiment = run().parent_path();
  EXPECT_THAT(experiment.filename().string(), MatchesRegex("[0-9]{18}"));
  const auto about = YAML::LoadFile((experiment / "meta.yaml").string());
  EXPECT_EQ(about["name"].as<std::string>(), "squares");
  EXPECT_EQ(about["experiment_id"].as<std::string>(), experiment.filename().string());
  EXPECT_EQ(about["lifecycle_stage"].as<std::string>(), "active");
  EXPECT_EQ(about["artifact_location"].as<std::string>(), "file://" + experiment.string());
  EXPECT_EQ(read_file((experiment / "tags/kind").string()), "test");
  EXPECT_FALSE(fs::exists(experiment / "tags/mlflow.note.content"));
}

// One line per value, readable while the run continues. Without a step it is 0, as in MLflow.
TEST_F(MlflowTest, NumbersBecomeLinesOfMetrics) {
  auto tracker = started();
  tracker.log({{"loss", 1}, {"flag", true}, {"a/b", 1e-5}, {"t", torch::tensor(2.5)}}, std::nullopt);
  tracker.log_with_kwargs({{"loss", 0.5}}, 3, {{"timestamp", 7}});
  tracker.log({{"loss", std::numeric_limits<double>::quiet_NaN()}}, -1);
  EXPECT_EQ(text("metrics/loss"), "1000500 1.0 0\n7 0.5 3\n1000500 nan -1\n");
  EXPECT_EQ(text("metrics/flag"), "1000500 1.0 0\n");
  EXPECT_EQ(text("metrics/a/b"), "1000500 1e-05 0\n");
  EXPECT_EQ(text("metrics/t"), "1000500 2.5 0\n");
}

TEST_F(MlflowTest, TheNumberOfOpenFilesIsLimited) {
  auto tracker = started();
  const auto num_open = [] { return std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator()); };
  const auto before = num_open();
  for (int step = 0; step < 2; ++step) {
    for (int i = 0; i < 300; ++i) tracker.log({{"x" + std::to_string(i), i}}, step);
  }
  EXPECT_LE(num_open() - before, 256);
  tracker.finish();
  for (const auto* name : {"0", "299"})
    EXPECT_EQ(text(fmt::format("metrics/x{}", name)), fmt::format("1000500 {0}.0 0\n1000500 {0}.0 1\n", name));
}

TEST_F(MlflowTest, OtherValuesAreOmittedWithOneWarning) {
  auto tracker = started();
  ::testing::internal::CaptureStderr();
  for (int step = 0; step < 2; ++step) tracker.log({{"note", "text"}, {"x", 1}}, step);
  const auto log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("mlflow omits 'note', which is a string; it accepts numbers"));
  EXPECT_EQ(log.find("omits"), log.rfind("omits"));
  EXPECT_FALSE(fs::exists(run() / "metrics/note"));
  EXPECT_EQ(text("metrics/x"), "1000500 1.0 0\n1000500 1.0 1\n");
}

// str(value) of Python.
TEST_F(MlflowTest, TheConfigurationBecomesParametersWithPythonsText) {
  auto tracker = started();
  tracker.store_init_configuration({{"b", true},
                                    {"f", 1e-5},
                                    {"i", 3},
                                    {"l", Value::List{1, "it's", Value::Dict{{"x", 2.0}}, Value()}},
                                    {"n", Value()},
                                    {"nested/s", "no quotes"}});
  EXPECT_EQ(text("params/b"), "True");
  EXPECT_EQ(text("params/f"), "1e-05");
  EXPECT_EQ(text("params/i"), "3");
  EXPECT_EQ(text("params/l"), R"([1, "it's", {'x': 2.0}, None])");
  EXPECT_EQ(text("params/n"), "None");
  EXPECT_EQ(text("params/nested/s"), "no quotes");
}

// The limit counts characters: 6000 letters of two bytes each fit.
TEST_F(MlflowTest, AParameterOfMoreThan6000CharactersIsOmittedWithAWarning) {
  auto tracker = started();
  std::string umlauts;
  for (int letter = 0; letter < 6000; ++letter) umlauts += "ü";
  ::testing::internal::CaptureStderr();
  tracker.store_init_configuration({{"fits", umlauts}, {"long", std::string(6001, 'x')}});
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("mlflow omits the parameter 'long', which has 6001"));
  EXPECT_EQ(text("params/fits"), umlauts);
  EXPECT_FALSE(fs::exists(run() / "params/long"));
}

// They would be paths outside of the run's folder, or two names of one file.
TEST_F(MlflowTest, NamesThatMlflowRejectsAreOneError) {
  auto tracker = started();
  Value::Dict values{{"lr rate: 1.a_b-c/d", 1}, {"größe", 1}};
  EXPECT_EQ(message_of<ArgumentError>([&] { tracker.check_init_configuration(values); }), "");
  values.insert({{"../x", 1}, {"/x", 1}, {"a//b", 1}, {"a/", 1}, {"", 1}, {"a\nb", 1}, {"a*", 1}});
  values.insert({std::string(251, 'x'), 1});
  const auto message = message_of<ArgumentError>([&] { tracker.check_init_configuration(values); });
  for (const auto* name : {"'../x' is", "'/x' is", "'a//b' is", "'a/' is", "'' is", "'a\nb' has", "'a*' has"})
    EXPECT_THAT(message, HasSubstr(std::string("the name ") + name));
  EXPECT_THAT(message, HasSubstr("has 251 characters; the limit is 250"));
  EXPECT_THAT(message_of<ArgumentError>([&] {
                tracker.check_log({{"loss%", 1}, {"t*", torch::tensor(1)}, {"note%", "text"}});
              }),
              AllOf(HasSubstr("log: mlflow: the name 'loss%' has"), HasSubstr("the name 't*' has"),
                    ::testing::Not(HasSubstr("note%"))));
  EXPECT_THAT(message_of<ArgumentError>([&] { tracker.log({{"../x", 1}}, 1); }), HasSubstr("rejects the name '../x'"));
}

TEST_F(MlflowTest, ASecondRunIsInTheSameExperiment) {
  for (int run = 0; run < 2; ++run) started().finish();
  ASSERT_EQ(runs().size(), 2U);
  EXPECT_EQ(runs()[0].parent_path().string(), runs()[1].parent_path().string());
}

// The run's start and earlier values remain. Parameters cannot change, because the values logged so far depend on them.
TEST_F(MlflowTest, ARunContinuesByItsId) {
  auto first = started();
  first.store_init_configuration({{"lr", 0.1}});
  first.log({{"loss", 1}}, 1);
  first.finish();
  options.run_id = run().filename();
  options.clock = [] { return 2000.0; };
  auto second = started();
  ASSERT_EQ(runs().size(), 1U);
  const auto meta = YAML::LoadFile((run() / "meta.yaml").string());
  EXPECT_EQ(meta["start_time"].as<int>(), 1000500);
  EXPECT_EQ(meta["status"].as<int>(), 1);
  second.log({{"loss", 0.5}}, 2);
  EXPECT_EQ(text("metrics/loss"), "1000500 1.0 1\n2000000 0.5 2\n");
  second.store_init_configuration({{"lr", 0.1}});
  EXPECT_THAT(message_of<ArgumentError>([&] {
                second.store_init_configuration({{"lr", 0.2}});
              }),
              HasSubstr("'lr' is '0.2', but run " + options.run_id + " has stored '0.1'"));
  options.run_id = "0123";
  EXPECT_THAT(message_of<ArgumentError>([&] { started(); }), HasSubstr("has no active run 0123"));
}

// Called on every rank before rank 0 opens the run, so that no rank throws alone.
TEST_F(MlflowTest, ARunThatCannotContinueIsReportedBeforeTheStart) {
  auto first = started();
  first.store_init_configuration({{"lr", 0.1}});
  first.finish();
  const auto problem = [&](const Value::Dict& config) {
    return message_of<ArgumentError>([&] { MLflowTracker(options).check_start({*context, "squares", ""}, config); });
  };
  EXPECT_EQ(problem({{"lr", 0.2}}), "");  // a new run
  options.run_id = run().filename();
  const auto meta = text("meta.yaml");
  EXPECT_EQ(problem({{"lr", 0.1}, {"batch", 2}}), "");
  EXPECT_THAT(problem({{"lr", 0.2}}), HasSubstr("'lr' is '0.2', but run " + options.run_id + " has stored '0.1'"));
  EXPECT_EQ(text("meta.yaml"), meta);
  EXPECT_FALSE(fs::exists(run() / "params/batch"));
  options.run_id = "0123";
  EXPECT_THAT(problem({}), HasSubstr("has no active run 0123"));
  options.folder = folder.path("another machine's");
  EXPECT_EQ(problem({}), "");
}

TEST_F(MlflowTest, ADamagedStartOfARunIsReported) {
  started().finish();
  options.run_id = run().filename();
  auto meta = YAML::LoadFile((run() / "meta.yaml").string());
  meta["start_time"] = "123456789012345678901234567890";
  write_atomically(*context->files, (run() / "meta.yaml").string(), YAML::Dump(meta));
  EXPECT_THAT(message_of<ArgumentError>([&] { started(); }),
              HasSubstr("meta.yaml: start_time is '123456789012345678901234567890'; expected milliseconds since 1970"));
}

TEST_F(MlflowTest, ArtifactsAreCopiedWithTheirFolders) {
  fs::create_directories(folder.path("out/deep"));
  for (const std::string name : {"out/a.txt", "out/deep/b.txt"}) PosixFiles().create(folder.path(name))->append(name);
  options.artifact_location = folder.path("my artifacts");
  auto tracker = started();
  tracker.log_artifact(folder.path("out/a.txt"), "");
  tracker.log_artifacts(folder.path("out"), "all");
  const auto artifacts = fs::path(options.artifact_location) / run().filename() / "artifacts";
  for (const std::string name : {"a.txt", "all/a.txt", "all/deep/b.txt"})
    EXPECT_THAT(read_file(artifacts / name), ::testing::EndsWith(fs::path(name).filename().string())) << name;
  const auto about = YAML::LoadFile((run().parent_path() / "meta.yaml").string());
  EXPECT_THAT(about["artifact_location"].as<std::string>(), ::testing::EndsWith("my%20artifacts"));
  EXPECT_THAT(message_of<ArgumentError>([&] { tracker.log_artifact(folder.path("out/a.txt"), "../b"); }),
              HasSubstr("is outside of the run"));
  EXPECT_THAT(message_of<ArgumentError>([&] { tracker.log_artifacts(folder.path("out/a.txt"), ""); }),
              HasSubstr("is not a folder"));
}

TEST_F(MlflowTest, AFigureBecomesAPngFile) {
  auto tracker = started();
  const auto figure = torch::randint(0, 256, {3, 4, 5}, torch::kByte);
  tracker.log_figure(figure, "plots/a.png");
  EXPECT_TRUE(torch::equal(decode_image(text("artifacts/plots/a.png")), figure));
  EXPECT_THAT(message_of<ArgumentError>([&] { tracker.log_figure(figure, "a.html"); }), HasSubstr("ends in .png"));
}

TEST(MlflowUriTest, OnlyPathsAndFileUrisHaveAPath) {
  using tracking::path_of_uri;
  EXPECT_EQ(path_of_uri("runs/a"), "runs/a");
  EXPECT_EQ(path_of_uri("file:runs"), "runs");
  EXPECT_EQ(path_of_uri("file:/a/b"), "/a/b");
  EXPECT_EQ(path_of_uri("file:///a%20b/%c3%BC"), "/a b/ü");
  EXPECT_EQ(path_of_uri("file://localhost/a"), "/a");
  EXPECT_EQ(path_of_uri(tracking::file_uri("/a b/ü:%")), "/a b/ü:%");
  for (const auto* uri : {"file://host/a", "http://host:5000", "sqlite:///mlflow.db", "databricks:"})
    EXPECT_EQ(path_of_uri(uri), std::nullopt) << uri;
}

TEST(MlflowOptionsTest, LoggingDirMayBeAUri) {
  std::vector<std::string> problems;
  EXPECT_EQ(mlflow_options({{"logging_dir", "file:///a%20b"}}, problems).artifact_location, "/a b");
  EXPECT_THAT(problems, ::testing::IsEmpty());
}

// Environment variables have priority, as in Accelerate.
TEST(MlflowOptionsTest, VariablesOverrideOptions) {
  const TemporaryFolder folder;
  const auto context = make_single_rank();
  const auto scope = patch_environment({{"MLFLOW_TRACKING_URI", "file://" + folder.path("store")},
                                        {"MLFLOW_EXPERIMENT_NAME", "from the environment"},
                                        {"MLFLOW_TAGS", R"({"a": "x", "b": 2})"}});
  Trackers trackers(*context, {"mlflow"}, std::nullopt);
  trackers.init_trackers(
      "project", Value::Dict{{"lr", 0.1}},
      {{"mlflow", Value::Dict{{"run_name", "r"}, {"nested_run", true}, {"tags", Value::Dict{{"c", 3}}}}}});
  trackers.log({{"loss", 1}}, 2, {{"mlflow", Value::Dict{{"timestamp", 5}, {"synchronous", false}}}});
  EXPECT_THAT(message_of<ArgumentError>([&] {
                trackers.log({{"loss", 1}}, 2, {{"mlflow", Value::Dict{{"timestamp", 0.5}, {"run_id", "x"}}}});
              }),
              HasSubstr("mlflow: run_id (string), timestamp (float): unknown option or wrong type"));
  trackers.end_training();
  std::vector<std::string> files;
  std::string experiment;
  for (const auto& entry : fs::recursive_directory_iterator(folder.path("store"))) {
    const auto parent = entry.path().parent_path().filename();
    if (entry.is_regular_file() && (parent == "metrics" || parent == "params" || parent == "tags"))
      files.push_back((parent / entry.path().filename()).string() + "=" + read_file(entry.path()));
    if (entry.is_regular_file() && entry.path().filename() == "meta.yaml") experiment += read_file(entry.path());
  }
  EXPECT_THAT(files, ::testing::IsSupersetOf(
                         {"metrics/loss=5 1.0 2\n", "params/lr=0.1", "tags/a=x", "tags/b=2", "tags/mlflow.runName=r"}));
  EXPECT_THAT(experiment, HasSubstr("name: \"from the environment\""));
}

// A rank that throws alone leaves the others waiting.
TEST(MlflowOptionsTest, ErrorsOfTheMainProcessAreErrorsOfEveryRank) {
  const TemporaryFolder folder;
  const auto scope = patch_environment({{"MLFLOW_TRACKING_URI", folder.path()}});
  const auto messages = testing::collect_ranks(testing::Backend::kSim, 2, [&](RankContext& rank) {
    Trackers trackers(rank, {"mlflow"}, std::nullopt);
    auto message = message_of<ArgumentError>([&] {
      trackers.init_trackers("run", std::nullopt, {{"mlflow", Value::Dict{{"run_id", "0123"}}}});
    });
    trackers.init_trackers("run");
    message += message_of<ArgumentError>([&] { trackers.log({{"loss%", 1}}, 1); });
    trackers.end_training();
    return message;
  });
  for (const auto& message : messages)
    EXPECT_THAT(message, AllOf(HasSubstr("has no active run 0123"), HasSubstr("the name 'loss%' has")));
}

TEST(MlflowOptionsTest, AllWrongOptionsAreOneError) {
  const auto context = make_single_rank();
  const auto scope = patch_environment({{"MLFLOW_TRACKING_URI", "http://localhost:5000"}, {"MLFLOW_TAGS", "no json"}});
  Trackers trackers(*context, {"mlflow"}, std::nullopt);
  const auto message = message_of<ConfigError>([&] {
    trackers.init_trackers(
        "run", std::nullopt,
        {{"mlflow", Value::Dict{{"run_name", 1}, {"experiment_name", "x"}, {"logging_dir", "s3://bucket/a"}}}});
  });
  EXPECT_THAT(message, HasSubstr("mlflow: experiment_name (string): unknown option"));
  EXPECT_THAT(message, HasSubstr("mlflow: logging_dir is 's3://bucket/a'; expected a folder or a file: URI"));
  EXPECT_THAT(message, HasSubstr("mlflow: run_name (int): unknown option or wrong type"));
  EXPECT_THAT(message, HasSubstr("mlflow: tags: expected a dict, or one written as JSON"));
  EXPECT_THAT(message, HasSubstr("MLFLOW_TRACKING_URI is 'http://localhost:5000'; expected a folder or a file: URI"));
}

}  // namespace
}  // namespace accel

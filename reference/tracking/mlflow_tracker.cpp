// Source: accelerate/tracking.py, MLflowTracker.
#include "reference/tracking/mlflow_tracker.hpp"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "reference/config/environment.hpp"
#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/state/rank_context.hpp"
#include "reference/tracking/summary.hpp"
#include "reference/tracking/value_text.hpp"

namespace accel {
namespace {

constexpr std::size_t kMaxLength = 6000;  // mlflow/utils/validation.py, MAX_PARAM_VAL_LENGTH

// Characters, not bytes, as in Python.
std::size_t num_characters(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](unsigned char byte) { return (byte & 0xc0) != 0x80; }));
}

// Tags are a dict, or one written as JSON.
void read_tags(const Value& tags, MLflowTracker::Options& options, std::vector<std::string>& problems) {
  if (tags.is<Value::Dict>()) {
    for (const auto& [name, value] : tags.as<Value::Dict>()) options.tags[name] = tracking::python_str(value);
  } else {
    const auto parsed = tags.is<std::string>()
                            ? nlohmann::json::parse(tags.as<std::string>(), nullptr, /*allow_exceptions=*/false)
                            : nlohmann::json();
    if (!parsed.is_object()) problems.emplace_back("mlflow: tags: expected a dict, or one written as JSON");
    for (const auto& [name, value] : parsed.items())
      options.tags[name] = value.is_string() ? value.get<std::string>() : value.dump();
  }
  for (const auto& [name, value] : options.tags) {
    if (const auto problem = tracking::mlflow_name_problem(name); !problem.empty())
      problems.push_back(fmt::format("mlflow: tags: the name '{}' {}", name, problem));
  }
}

void read_logging_dir(const std::string& uri, MLflowTracker::Options& options, std::vector<std::string>& problems) {
  if (const auto folder = tracking::path_of_uri(uri))
    options.artifact_location = *folder;
  else
    problems.push_back(fmt::format("mlflow: logging_dir is '{}'; expected a folder or a file: URI", uri));
}

}  // namespace

MLflowTracker::Options mlflow_options(const Value::Dict& kwargs, std::vector<std::string>& problems) {
  MLflowTracker::Options options;
  Value tags;
  for (const auto& [key, value] : kwargs) {
    const bool is_text = value.is<std::string>();
    if (key == "tags")
      tags = value;
    else if (key == "logging_dir" && is_text)
      read_logging_dir(value.as<std::string>(), options, problems);
    else if (key == "run_id" && is_text)
      options.run_id = value.as<std::string>();
    else if (key == "run_name" && is_text)
      options.run_name = value.as<std::string>();
    else if (key == "description" && is_text)
      options.description = value.as<std::string>();
    else if (key != "nested_run" || !value.is<bool>())
      problems.push_back(
          fmt::format("mlflow: {} ({}): unknown option or wrong type; expected logging_dir, run_id, run_name, "
                      "description (strings), tags (a dict) or nested_run (a bool)",
                      key, value.type_name()));
  }
  if (const auto text = environment("MLFLOW_TAGS")) tags = *text;
  if (!tags.is_null()) read_tags(tags, options, problems);
  options.experiment_name = environment("MLFLOW_EXPERIMENT_NAME").value_or("");
  options.run_id = environment("MLFLOW_RUN_ID").value_or(options.run_id);
  const auto uri = environment("MLFLOW_TRACKING_URI").value_or(options.folder);
  if (const auto folder = tracking::path_of_uri(uri))
    options.folder = *folder;
  else
    problems.push_back(fmt::format(
        "mlflow: MLFLOW_TRACKING_URI is '{}'; expected a folder or a file: URI, because this tracker writes "
        "files and connects to no server; unset it, and open the folder mlruns with mlflow ui",
        uri));
  return options;
}

void MLflowTracker::start(const Run& run) {
  logger_ = logging::get_logger("accel.tracking", {.context = &run.context});
  disk_ = run.context.files;
  auto options = options_;
  if (options.experiment_name.empty()) options.experiment_name = run.project_name;
  run_ = std::make_unique<tracking::MlflowRun>(*disk_, std::move(options));
}

tracking::MlflowRun& MLflowTracker::run() {
  check_state(run_ != nullptr,
              "mlflow: the tracker is not running; call init_trackers first, and do not log after end_training");
  return *run_;
}

void MLflowTracker::check_init_configuration(const Value::Dict& values) const {
  std::vector<std::string> problems;
  for (const auto& [name, value] : values) {
    if (const auto problem = tracking::mlflow_name_problem(name); !problem.empty())
      problems.push_back(fmt::format("the name '{}' {}", name, problem));
  }
  check_argument(problems.empty(), "the run's configuration: mlflow: {}; rename the values", listed(problems, "; "));
}

void MLflowTracker::check_start(const Run& run, const Value::Dict& config) const {
  std::map<std::string, std::string> params;
  for (const auto& [name, value] : config) {
    if (auto text = tracking::python_str(value); num_characters(text) <= kMaxLength)
      params.emplace(name, std::move(text));
  }
  tracking::check_continued_run(*run.context.files, options_, params);
}

void MLflowTracker::store_init_configuration(const Value::Dict& values) {
  for (const auto& [name, value] : values) {
    const auto text = tracking::python_str(value);
    if (num_characters(text) <= kMaxLength)
      run().log_param(name, text);
    else
      logger_->warning_once(fmt::format("mlflow omits the parameter '{}', which has {} characters; the limit is {}",
                                        name, num_characters(text), kMaxLength));
  }
}

void MLflowTracker::check_log(const Value::Dict& values) const {
  std::vector<std::string> problems;
  for (const auto& [name, value] : values) {
    const auto problem = tracking::is_number(value) ? tracking::mlflow_name_problem(name) : "";
    if (!problem.empty()) problems.push_back(fmt::format("the name '{}' {}", name, problem));
  }
  check_argument(problems.empty(), "log: mlflow: {}; rename the values", listed(problems, "; "));
}

void MLflowTracker::log(const Value::Dict& values, std::optional<std::int64_t> step) {
  log_with_kwargs(values, step, {});
}

// Source: mlflow/tracking/fluent.py, log_metrics. Every call is synchronous here.
void MLflowTracker::check_log_kwargs(const Value::Dict& kwargs) const {
  std::vector<std::string> problems;
  for (const auto& [key, value] : kwargs) {
    if (!(key == "timestamp" && value.is<std::int64_t>()) && !(key == "synchronous" && value.is<bool>()))
      problems.push_back(fmt::format("{} ({})", key, value.type_name()));
  }
  check_argument(problems.empty(),
                 "log_kwargs: mlflow: {}: unknown option or wrong type; expected timestamp, in milliseconds since 1970 "
                 "(an integer), or synchronous (a bool)",
                 listed(problems, ", "));
}

// Without a step, MLflow stores step 0.
void MLflowTracker::log_with_kwargs(const Value::Dict& values, std::optional<std::int64_t> step,
                                    const Value::Dict& kwargs) {
  const auto time_ms = kwargs.contains("timestamp") ? kwargs.at("timestamp").as<std::int64_t>()
                                                    : static_cast<std::int64_t>(options_.clock() * 1000);
  for (const auto& [key, value] : values) {
    if (const auto number = tracking::number_of(value))
      run().log_metric(key, *number, time_ms, step.value_or(0));
    else
      logger_->warning_once(
          fmt::format("mlflow omits '{}', which is a {}; it accepts numbers", key, value.type_name()));
  }
}

void MLflowTracker::log_figure(const at::Tensor& figure, const std::string& artifact_file) {
  check_argument(artifact_file.ends_with(".png"), "log_figure: expected a file name that ends in .png, got '{}'",
                 artifact_file);
  check_argument(figure.defined() && figure.dim() == 3,
                 "log_figure: expected a picture of shape (1 or 3, height, width)");
  run().log_artifact(artifact_file, tracking::encode_png(tracking::image_grid(figure.unsqueeze(0))).png);
}

void MLflowTracker::log_artifact(const std::string& local_path, const std::string& artifact_path) {
  const auto name = std::filesystem::path(local_path).filename();
  run().log_artifact((std::filesystem::path(artifact_path) / name).string(), disk_->read(local_path));
}

void MLflowTracker::log_artifacts(const std::string& local_dir, const std::string& artifact_path) {
  run();
  copy_folder(local_dir, artifact_path);
}

void MLflowTracker::copy_folder(const std::string& from, const std::string& to) {
  check_argument(is_folder(*disk_, from), "log_artifacts: {} is not a folder; expected an existing one", from);
  for (const auto& name : disk_->list(from)) {
    const auto path = from + "/" + name;
    if (name.ends_with('/'))
      copy_folder(path.substr(0, path.size() - 1), (to.empty() ? "" : to + "/") + name.substr(0, name.size() - 1));
    else
      log_artifact(path, to);
  }
}

void MLflowTracker::finish() {
  if (run_) run_->finish();
  run_.reset();
}

}  // namespace accel

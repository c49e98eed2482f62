#include "reference/tracking/mlflow_run.hpp"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <random>
#include <tuple>
#include <utility>

#include "reference/config/environment.hpp"
#include "reference/config/yaml_reader.hpp"
#include "reference/core/errors.hpp"
#include "reference/tracking/value_text.hpp"

namespace accel::tracking {
namespace {

namespace fs = std::filesystem;

constexpr int kRunning = 1, kFinished = 3;  // mlflow/entities/run_status.py
constexpr int kSourceLocal = 4;             // mlflow/entities/source_type.py

// MLflow's ids are 32 hexadecimal digits of runs and 18 decimal digits of experiments.
std::string random_digits(std::string_view digits, int count) {
  std::random_device device;
  std::uniform_int_distribution<std::size_t> any(0, digits.size() - 1);
  std::string id;
  while (static_cast<int>(id.size()) < count) id += digits[any(device)];
  return id;
}

// Files that are no YAML are skipped, as MLflow does for experiments.
YAML::Node read_meta(Files& files, const std::string& folder) {
  const auto text = read_if_exists(files, folder + "/meta.yaml");
  if (!text) return {};
  try {
    return yaml_of(*text, folder + "/meta.yaml");
  } catch (const ConfigError&) {
    return {};
  }
}

std::string text_of(const YAML::Node& meta, const std::string& key) {
  return meta.IsMap() && meta[key] && meta[key].IsScalar() ? meta[key].as<std::string>() : "";
}

// A run without a start time began at 0.
std::int64_t start_time_of(const YAML::Node& meta, const std::string& folder) {
  const auto text = text_of(meta, "start_time");
  std::int64_t time_ms = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), time_ms);
  check_argument(text.empty() || (error == std::errc() && end == text.data() + text.size()),
                 "mlflow: {}/meta.yaml: start_time is '{}'; expected milliseconds since 1970; start another run",
                 folder, text);
  return time_ms;
}

bool is_active_experiment(const YAML::Node& meta) { return text_of(meta, "lifecycle_stage") == "active"; }

// The run to continue: its folder and its fields.
std::pair<std::string, MlflowMeta> find_run(Files& files, const MlflowRun::Options& options) {
  for (const auto& experiment : files.list(options.folder)) {
    const auto folder = options.folder + "/" + experiment + options.run_id;
    const auto meta = experiment.ends_with('/') ? read_meta(files, folder) : YAML::Node();
    if (text_of(meta, "run_id") != options.run_id || text_of(meta, "lifecycle_stage") != "active") continue;
    return {folder,
            {options.run_id, text_of(meta, "run_name"), text_of(meta, "experiment_id"), text_of(meta, "artifact_uri"),
             text_of(meta, "user_id"), start_time_of(meta, folder)}};
  }
  throw ArgumentError(fmt::format("mlflow: the folder {} has no active run {}; expected the run_id of one of its runs",
                                  options.folder, options.run_id));
}

// Whether the run in `folder` has the parameter. Throws if it has another value.
bool is_stored(Files& files, const std::string& folder, const std::string& name, const std::string& value) {
  const auto current = read_if_exists(files, folder + "/params/" + name);
  check_argument(
      !current || *current == value,
      "the run's configuration: '{}' is '{}', but run {} has stored '{}'; mlflow does not change parameters: "
      "use the stored value, or start another run",
      name, value, fs::path(folder).filename().string(), current.value_or(""));
  return current.has_value();
}

// The characters of str.__repr__.
std::string python_repr(const std::string& text) {
  const char quote = text.find('\'') != std::string::npos && text.find('"') == std::string::npos ? '"' : '\'';
  std::string quoted(1, quote);
  for (const char letter : text) {
    if (letter == quote || letter == '\\')
      quoted += {'\\', letter};
    else if (letter == '\n')
      quoted += "\\n";
    else if (letter == '\t')
      quoted += "\\t";
    else if (letter == '\r')
      quoted += "\\r";
    else if (std::iscntrl(static_cast<unsigned char>(letter)) != 0)
      quoted += fmt::format("\\x{:02x}", static_cast<unsigned char>(letter));
    else
      quoted += letter;
  }
  return quoted + quote;
}

std::string item_text(const Value& value) {
  return value.is<std::string>() ? python_repr(value.as<std::string>()) : python_str(value);
}

}  // namespace

// Letters beyond ASCII are accepted, and so are the few other characters beyond it that MLflow rejects.
std::string mlflow_name_problem(const std::string& name) {
  constexpr std::size_t kMaxLength = 250;  // MAX_ENTITY_KEY_LENGTH
  const bool has_bad_character = std::any_of(name.begin(), name.end(), [](unsigned char letter) {
    return letter < 0x80 && std::isalnum(letter) == 0 &&
           std::string_view("/_.- :").find(static_cast<char>(letter)) == std::string_view::npos;
  });
  if (has_bad_character) return "has characters other than letters, digits, and any of _-. :/";
  if (name.empty() || name == "." || name.starts_with("..") || name.starts_with("/") || name.ends_with("/") ||
      fs::path(name).lexically_normal().string() != name)
    return "is not the normal form of a relative path";
  if (name.size() > kMaxLength) return fmt::format("has {} characters; the limit is {}", name.size(), kMaxLength);
  return "";
}

// Source: mlflow/utils/file_utils.py, local_file_uri_to_path.
std::optional<std::string> path_of_uri(const std::string& uri) {
  const auto colon = uri.find(':');
  const auto slash = uri.find('/');
  if (colon == std::string::npos || slash < colon) return uri;
  if (!uri.starts_with("file:")) return std::nullopt;
  auto rest = std::string_view(uri).substr(5);
  if (rest.starts_with("//localhost/")) rest.remove_prefix(11);
  if (rest.starts_with("///")) rest.remove_prefix(2);
  if (rest.starts_with("//")) return std::nullopt;  // another host
  std::string path;
  for (std::size_t place = 0; place < rest.size(); ++place) {
    const bool is_escape = rest[place] == '%' && place + 2 < rest.size() && std::isxdigit(rest[place + 1]) != 0 &&
                           std::isxdigit(rest[place + 2]) != 0;
    path += is_escape ? static_cast<char>(std::stoi(std::string(rest.substr(place + 1, 2)), nullptr, 16)) : rest[place];
    if (is_escape) place += 2;
  }
  return path;
}

std::string file_uri(const std::string& path) {
  std::string uri = "file://";
  for (const unsigned char letter : path) {
    const bool is_plain = std::isalnum(letter) != 0 ||
                          std::string_view("/_.-~").find(static_cast<char>(letter)) != std::string_view::npos;
    uri += is_plain ? std::string(1, static_cast<char>(letter)) : fmt::format("%{:02X}", letter);
  }
  return uri;
}

std::string python_str(const Value& value) {
  if (value.is_null()) return "None";
  if (value.is<bool>()) return value.as<bool>() ? "True" : "False";
  if (value.is<double>()) return number_text(value.as<double>());
  if (value.is<std::string>()) return value.as<std::string>();
  if (value.is<at::Tensor>()) return python_str(without_tensors(value));
  std::string text;
  if (value.is<Value::List>()) {
    for (const auto& item : value.as<Value::List>()) text += (text.empty() ? "" : ", ") + item_text(item);
    return "[" + text + "]";
  }
  if (value.is<Value::Dict>()) {
    for (const auto& [name, item] : value.as<Value::Dict>())
      text += (text.empty() ? "" : ", ") + python_repr(name) + ": " + item_text(item);
    return "{" + text + "}";
  }
  return std::to_string(value.as<std::int64_t>());
}

void check_continued_run(Files& files, const MlflowRun::Options& options,
                         const std::map<std::string, std::string>& params) {
  if (options.run_id.empty() || !is_folder(files, options.folder)) return;
  const auto folder = find_run(files, options).first;
  for (const auto& [name, value] : params) is_stored(files, folder, name, value);
}

MlflowRun::MlflowRun(Files& files, Options options) : files_(files), options_(std::move(options)) {
  options_.folder = fs::absolute(options_.folder).lexically_normal().string();
  files_.make_folder(options_.folder);
  if (options_.run_id.empty())
    create_run(find_experiment());
  else
    std::tie(folder_, meta_) = find_run(files_, options_);
  write_meta(kRunning, Value());
  if (!options_.description.empty()) set_tag("mlflow.note.content", options_.description);
  for (const auto& [name, value] : options_.tags) set_tag(name, value);
}

std::int64_t MlflowRun::now_ms() const { return static_cast<std::int64_t>(options_.clock() * 1000); }

// Source: accelerate/tracking.py, MLflowTracker.start.
std::string MlflowRun::find_experiment() {
  for (auto name : files_.list(options_.folder)) {
    if (!name.ends_with('/')) continue;
    name.pop_back();
    const auto meta = read_meta(files_, options_.folder + "/" + name);
    if (is_active_experiment(meta) && text_of(meta, "name") == options_.experiment_name) return name;
  }
  const auto id = random_digits("123456789", 18);  // MLflow's have no leading zero
  create_experiment(id);
  return id;
}

void MlflowRun::create_experiment(const std::string& id) {
  const auto folder = options_.folder + "/" + id;
  const auto artifacts =
      options_.artifact_location.empty() ? folder : fs::absolute(options_.artifact_location).string();
  files_.make_folder(folder);
  write(folder + "/meta.yaml", yaml_text({{"artifact_location", file_uri(artifacts)},
                                          {"creation_time", now_ms()},
                                          {"experiment_id", id},
                                          {"last_update_time", now_ms()},
                                          {"lifecycle_stage", "active"},
                                          {"name", options_.experiment_name}}));
  for (const auto& [name, value] : options_.tags) write(folder + "/tags/" + name, value);
}

void MlflowRun::create_run(const std::string& experiment_id) {
  const auto experiment = options_.folder + "/" + experiment_id;
  meta_.run_id = random_digits("0123456789abcdef", 32);
  meta_.run_name = options_.run_name.empty() ? "run-" + meta_.run_id.substr(0, 8) : options_.run_name;
  meta_.experiment_id = experiment_id;
  meta_.artifact_uri = text_of(read_meta(files_, experiment), "artifact_location") + "/" + meta_.run_id + "/artifacts";
  meta_.user_id = environment("LOGNAME").value_or(environment("USER").value_or("unknown"));
  meta_.start_time = now_ms();
  folder_ = experiment + "/" + meta_.run_id;
  for (const auto* part : {"metrics", "params", "tags"}) files_.make_folder(folder_ + "/" + part);
  options_.tags.insert(
      {{"mlflow.runName", meta_.run_name}, {"mlflow.user", meta_.user_id}, {"mlflow.source.type", "LOCAL"}});
}

// The empty fields are those that MLflow still writes for its old versions; `run_uuid` is the old name of `run_id`.
void MlflowRun::write_meta(int status, const Value& end_time) {
  write(folder_ + "/meta.yaml", yaml_text({{"artifact_uri", meta_.artifact_uri},
                                           {"deleted_time", Value()},
                                           {"end_time", end_time},
                                           {"entry_point_name", ""},
                                           {"experiment_id", meta_.experiment_id},
                                           {"lifecycle_stage", "active"},
                                           {"run_id", meta_.run_id},
                                           {"run_name", meta_.run_name},
                                           {"run_uuid", meta_.run_id},
                                           {"source_name", ""},
                                           {"source_type", kSourceLocal},
                                           {"source_version", ""},
                                           {"start_time", meta_.start_time},
                                           {"status", status},
                                           {"tags", Value::List{}},
                                           {"user_id", meta_.user_id}}));
}

// Names with slashes are paths.
void MlflowRun::write(const std::string& path, std::string_view text) {
  files_.make_folder(fs::path(path).parent_path().string());
  write_atomically(files_, path, text);
}

void MlflowRun::log_metric(const std::string& name, double value, std::int64_t time_ms, std::int64_t step) {
  const auto problem = mlflow_name_problem(name);
  check_argument(problem.empty(), "log: mlflow rejects the name '{}', which {}; rename the value", name, problem);
  auto& metric = opened(name);
  metric.last_use = ++num_logged_;
  metric.file->append(fmt::format("{} {} {}\n", time_ms, number_text(value), step));
}

// A process may have only 1024 open files. Opening a file again copies it, so that as many as possible stay open.
MlflowRun::Metric& MlflowRun::opened(const std::string& name) {
  constexpr std::size_t kOpenFilesMax = 256;
  if (const auto found = metrics_.find(name); found != metrics_.end()) return found->second;
  if (metrics_.size() == kOpenFilesMax) {
    const auto oldest = std::min_element(metrics_.begin(), metrics_.end(), [](const auto& a, const auto& b) {
      return a.second.last_use < b.second.last_use;
    });
    oldest->second.file->close();
    metrics_.erase(oldest);
  }
  const auto path = folder_ + "/metrics/" + name;
  files_.make_folder(fs::path(path).parent_path().string());
  return metrics_[name] = {.file = std::make_unique<AppendableFile>(files_, path)};
}

void MlflowRun::log_param(const std::string& name, const std::string& value) {
  if (!is_stored(files_, folder_, name, value)) write(folder_ + "/params/" + name, value);
}

void MlflowRun::set_tag(const std::string& name, const std::string& value) { write(folder_ + "/tags/" + name, value); }

void MlflowRun::log_artifact(const std::string& name, std::string_view bytes) {
  const auto folder = path_of_uri(meta_.artifact_uri);
  check_argument(
      folder.has_value(),
      "mlflow: the artifacts of run {} are at {}; expected a folder of this machine: use an experiment whose "
      "artifact_location is one",
      meta_.run_id, meta_.artifact_uri);
  check_argument(!fs::path(name).is_absolute() && !fs::path(name).lexically_normal().string().starts_with(".."),
                 "mlflow: the artifact {} is outside of the run; expected a relative path without '..'", name);
  write(*folder + "/" + name, bytes);
}

void MlflowRun::finish() {
  for (const auto& [name, metric] : metrics_) metric.file->close();
  metrics_.clear();
  write_meta(kFinished, now_ms());
}

}  // namespace accel::tracking

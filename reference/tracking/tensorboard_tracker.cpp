// Source: accelerate/tracking.py, TensorBoardTracker, and torch/utils/tensorboard/writer.py, SummaryWriter.
#include "reference/tracking/tensorboard_tracker.hpp"

#include <algorithm>

#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/state/rank_context.hpp"
#include "reference/tracking/summary.hpp"
#include "reference/tracking/value_text.hpp"

namespace accel {
namespace {

// Arguments of SummaryWriter. max_queue and flush_secs are accepted because Accelerate's programs pass them.
bool is_tensorboard_option(const std::string& key, const Value& value) {
  if (key == "filename_suffix") return value.is<std::string>();
  return (key == "purge_step" || key == "max_queue" || key == "flush_secs") && value.is<std::int64_t>();
}

}  // namespace

using tracking::EventFile;

TensorBoardTracker::TensorBoardTracker(Options options) : options_(std::move(options)) {}
TensorBoardTracker::~TensorBoardTracker() = default;

void TensorBoardTracker::check_init_configuration(const Value::Dict& values) const { tracking::check_hparams(values); }

void TensorBoardTracker::start(const Run& run) {
  logger_ = logging::get_logger("accel.tracking", {.context = &run.context});
  disk_ = run.context.files;
  folder_ = run.logging_dir + "/" + run.project_name;
  files_.clear();
  file_of("");
}

// Files are created on first use, because the names of subfolders come from logged dicts.
EventFile& TensorBoardTracker::file_of(const std::string& subfolder) {
  check_state(disk_ != nullptr,
              "tensorboard: the tracker is not running; call init_trackers first, and do not log after end_training");
  auto& file = files_[subfolder];
  if (!file) {
    auto options = options_;
    if (!subfolder.empty()) options.purge_step.reset();  // as SummaryWriter, which purges only in the run's folder
    file = std::make_unique<EventFile>(*disk_, subfolder.empty() ? folder_ : folder_ + "/" + subfolder, options);
  }
  return *file;
}

// Source: torch/utils/tensorboard/writer.py, add_hparams: a separate session in a subfolder named after the time,
// and accelerate's hparams.yml in it.
void TensorBoardTracker::store_init_configuration(const Value::Dict& values) {
  file_of("");
  const auto seconds = tracking::number_text(options_.clock());
  auto options = options_;
  options.purge_step.reset();
  options.filename_suffix.clear();
  EventFile session(*disk_, folder_ + "/" + seconds, options);
  for (const auto& summary : tracking::hparams_summaries(values)) session.add(summary, {});
  session.close();
  write_atomically(*disk_, folder_ + "/" + seconds + "/hparams.yml", tracking::yaml_text(values));
}

// Source: accelerate/tracking.py, TensorBoardTracker.log. A dict is written as by add_scalars: one event file per
// entry, in a folder "key_entry", all with the tag of the dict. Slashes in the key would create nested folders.
void TensorBoardTracker::log_value(const std::string& key, const Value& value, const tracking::EventTime& time) {
  if (const auto number = tracking::number_of(value)) {
    file_of("").add(tracking::scalar_summary(key, *number), time);
  } else if (value.is<std::string>()) {
    file_of("").add(tracking::text_summary(key, value.as<std::string>()), time);
  } else if (value.is<Value::Dict>()) {
    auto folder = key;
    std::replace(folder.begin(), folder.end(), '/', '_');
    for (const auto& [name, part] : value.as<Value::Dict>()) {
      const auto number = tracking::number_of(part);
      check_argument(number.has_value(), "log: '{}' of '{}' is a {}; tensorboard accepts dicts of numbers", name, key,
                     part.type_name());
      file_of(folder + "_" + name).add(tracking::scalar_summary(key, *number), time);
    }
  } else {
    logger_->warning_once(
        fmt::format("tensorboard omits '{}', which is a {}; it accepts numbers, strings and dicts of numbers", key,
                    value.type_name()));
  }
}

void TensorBoardTracker::log(const Value::Dict& values, std::optional<std::int64_t> step) {
  log_with_kwargs(values, step, {});
}

// Source: torch/utils/tensorboard/writer.py: add_scalar, add_text and add_scalars all have walltime. The other
// arguments of add_scalar change only its encoding.
void TensorBoardTracker::check_log_kwargs(const Value::Dict& kwargs) const {
  std::vector<std::string> problems;
  for (const auto& [key, value] : kwargs) {
    if (key != "walltime" || !tracking::number_of(value))
      problems.push_back(fmt::format("{} ({})", key, value.type_name()));
  }
  check_argument(problems.empty(),
                 "log_kwargs: tensorboard: {}: unknown option or wrong type; expected walltime, in seconds since 1970",
                 listed(problems, ", "));
}

void TensorBoardTracker::log_with_kwargs(const Value::Dict& values, std::optional<std::int64_t> step,
                                         const Value::Dict& kwargs) {
  tracking::EventTime time{.step = step};
  if (kwargs.contains("walltime")) time.walltime = tracking::number_of(kwargs.at("walltime"));
  for (const auto& [key, value] : values) log_value(key, value, time);
  flush();
}

void TensorBoardTracker::log_images(const std::map<std::string, at::Tensor>& values, std::optional<std::int64_t> step) {
  for (const auto& [key, images] : values)
    file_of("").add(tracking::image_summary(key, tracking::encode_png(tracking::image_grid(images))), {.step = step});
  flush();
}

// Called after every log, as in Accelerate: a crash then loses nothing that was logged.
void TensorBoardTracker::flush() {
  for (const auto& [folder, file] : files_) file->flush();
}

void TensorBoardTracker::finish() {
  for (const auto& [folder, file] : files_) file->close();
  files_.clear();
  disk_.reset();
}

TensorBoardTracker::Options tensorboard_options(const Value::Dict& kwargs, std::vector<std::string>& problems) {
  TensorBoardTracker::Options options;
  for (const auto& [key, value] : kwargs) {
    if (!is_tensorboard_option(key, value)) {
      problems.push_back(
          fmt::format("tensorboard: {} ({}): unknown option or wrong type; expected filename_suffix (a string), "
                      "purge_step, max_queue or flush_secs (integers)",
                      key, value.type_name()));
    } else if (key == "filename_suffix") {
      options.filename_suffix = value.as<std::string>();
    } else if (key == "purge_step") {
      options.purge_step = value.as<std::int64_t>();
    }
  }
  return options;
}

}  // namespace accel

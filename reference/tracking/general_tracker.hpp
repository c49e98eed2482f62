#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "reference/tree/value.hpp"

namespace accel {

struct RankContext;

/// Interface of experiment trackers. Derive from it to write your own, and pass an object to `log_with`.
///
///     class Printer : public accel::GeneralTracker {
///      public:
///       std::string name() const override { return "printer"; }
///       bool requires_logging_directory() const override { return false; }
///       void log(const accel::Value::Dict& values, std::optional<std::int64_t> step) override { ... }
///     };
///
/// Methods that a tracker does not override throw ArgumentError where Accelerate's trackers lack the method.
/// Thread rule: the rank's thread; an object belongs to one rank.
/// Source: accelerate/tracking.py, GeneralTracker. Its methods run only on ranks where the tracker is active, so no
/// equivalent of the decorator @on_main_process is needed.
class GeneralTracker {
 public:
  /// Information about the run that starts.
  struct Run {
    RankContext& context;
    std::string project_name = {};
    std::string logging_dir = {};  ///< empty if there is none and the tracker does not require one
  };

  /// The rows of a table; each has one value per column.
  struct Table {
    std::vector<std::string> columns = {};
    std::vector<std::vector<Value>> data = {};
  };

  virtual ~GeneralTracker() = default;
  [[nodiscard]] virtual std::string name() const = 0;
  [[nodiscard]] virtual bool requires_logging_directory() const = 0;
  /// True if the tracker is active on rank 0 only, false if on every rank.
  [[nodiscard]] virtual bool main_process_only() const { return true; }
  /// Throws for a configuration that `store_init_configuration` would reject. Called on every rank, so that all ranks
  /// throw.
  virtual void check_init_configuration(const Value::Dict& /*values*/) const {}

  /// Throws where `start` and `store_init_configuration` would, if the files of this machine show it. Reads only.
  /// Called on every rank, so that all ranks throw.
  virtual void check_start(const Run& /*run*/, const Value::Dict& /*config*/) const {}

  virtual void start(const Run& /*run*/) {}
  /// Stores the hyperparameters of the run.
  virtual void store_init_configuration(const Value::Dict& /*values*/) {}
  /// Throws for values that `log` would reject. Called on every rank, so that all ranks throw.
  virtual void check_log(const Value::Dict& /*values*/) const {}
  /// Logs numbers, strings, and dicts of numbers.
  virtual void log(const Value::Dict& values, std::optional<std::int64_t> step) = 0;
  /// Logs named batches of images of shape (count, 1 or 3, height, width), uint8, or floating-point in [0, 1].
  virtual void log_images(const std::map<std::string, at::Tensor>& /*values*/, std::optional<std::int64_t> /*step*/) {}
  /// Throws for options of a call of log that the tracker does not have. Called on every rank, so that all ranks throw.
  virtual void check_log_kwargs(const Value::Dict& kwargs) const;
  /// As `log`, with options of this call that `check_log_kwargs` accepts.
  virtual void log_with_kwargs(const Value::Dict& values, std::optional<std::int64_t> step,
                               const Value::Dict& /*kwargs*/) {
    log(values, step);
  }
  virtual void log_table(const std::string& table_name, const Table& table, std::optional<std::int64_t> step);
  /// Stores a picture of shape (1 or 3, height, width), as those of log_images, in a file of the run.
  virtual void log_figure(const at::Tensor& figure, const std::string& artifact_file);
  /// Copies a file, or all files of a folder, to the run. `artifact_path`: a folder of the run; empty: its root.
  virtual void log_artifact(const std::string& local_path, const std::string& artifact_path = "");
  virtual void log_artifacts(const std::string& local_dir, const std::string& artifact_path = "");
  /// Returns the tracker that does the work: this one, or the one that a user-defined tracker wraps.
  [[nodiscard]] virtual GeneralTracker& tracker() { return *this; }
  virtual void finish() {}
};

}  // namespace accel

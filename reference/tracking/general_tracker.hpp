#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "reference/core/value.hpp"

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

  virtual ~GeneralTracker() = default;
  [[nodiscard]] virtual std::string name() const = 0;
  [[nodiscard]] virtual bool requires_logging_directory() const = 0;
  /// True if the tracker is active on rank 0 only, false if on every rank.
  [[nodiscard]] virtual bool main_process_only() const { return true; }
  /// Throws for a configuration that `store_init_configuration` would reject. Called on every rank, so that all ranks
  /// throw.
  virtual void check_init_configuration(const Value::Dict& /*values*/) const {}

  virtual void start(const Run& /*run*/) {}
  /// Stores the hyperparameters of the run.
  virtual void store_init_configuration(const Value::Dict& /*values*/) {}
  /// Logs numbers, strings, and dicts of numbers.
  virtual void log(const Value::Dict& values, std::optional<std::int64_t> step) = 0;
  /// Logs named batches of images of shape (count, 1 or 3, height, width), uint8, or floating-point in [0, 1].
  virtual void log_images(const std::map<std::string, at::Tensor>& /*values*/, std::optional<std::int64_t> /*step*/) {}
  virtual void finish() {}
};

}  // namespace accel

#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "reference/core/value.hpp"

namespace accel {

struct RankContext;

/// Where an experiment's numbers go: derive from it for a place of your own, and hand an object to `log_with`.
///
///     class Printer : public accel::GeneralTracker {
///      public:
///       std::string name() const override { return "printer"; }
///       bool requires_logging_directory() const override { return false; }
///       void log(const accel::Value::Dict& values, std::optional<std::int64_t> step) override { ... }
///     };
///
/// Thread rule: the rank's thread; an object belongs to one rank.
/// Source: accelerate/tracking.py, GeneralTracker. Here its methods run only on ranks where the tracker is active, so
/// they need no decorator.
class GeneralTracker {
 public:
  /// What a tracker is told when a run begins.
  struct Run {
    RankContext& context;
    std::string project_name = {};
    std::string logging_dir = {};  ///< empty if the tracker needs none and there is none
  };

  virtual ~GeneralTracker() = default;
  [[nodiscard]] virtual std::string name() const = 0;
  [[nodiscard]] virtual bool requires_logging_directory() const = 0;
  /// Whether it is active on rank 0 alone, or on every rank.
  [[nodiscard]] virtual bool main_process_only() const { return true; }
  /// Throws for a configuration that `store_init_configuration` would refuse. Called on every rank, so that all throw
  /// alike.
  virtual void check_init_configuration(const Value::Dict& /*values*/) const {}

  virtual void start(const Run& /*run*/) {}
  /// The run's hyperparameters.
  virtual void store_init_configuration(const Value::Dict& /*values*/) {}
  /// Numbers, strings, and dicts of numbers.
  virtual void log(const Value::Dict& values, std::optional<std::int64_t> step) = 0;
  /// Batches of images by name: (count, 1 or 3, height, width), uint8, or floating in [0, 1].
  virtual void log_images(const std::map<std::string, at::Tensor>& /*values*/, std::optional<std::int64_t> /*step*/) {}
  virtual void finish() {}
};

}  // namespace accel

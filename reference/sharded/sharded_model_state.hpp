#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "reference/modules/call.hpp"
#include "reference/modules/described_model.hpp"
#include "reference/sharded/sharded_model.hpp"
#include "reference/sharded/step.hpp"

namespace accel::sharded {

/// The units of a ShardedModel and their flat buffers. Private to the sources of ShardedModel.
struct ShardedModel::State {
  State(std::shared_ptr<torch::nn::Module> module, ShardGroups groups, ShardingOptions options, c10::Device device,
        const bool& sync_gradients);

  /// Full parameters, each once, and buffers, by name, filled from `parts`. Throws CheckpointError if the parts do not
  /// fit the model.
  [[nodiscard]] std::map<std::string, at::Tensor> assembled(const std::vector<TensorPart>& parts) const;

  std::shared_ptr<torch::nn::Module> module;
  ShardGroups groups;
  ShardingOptions options;
  c10::Device device;
  MemoryAccount memory;
  Step step;
  DescribedModel model;
  ModelPlan plan;
  std::vector<std::shared_ptr<Unit>> units;
  std::vector<ScopedModuleHooks> calls;
  std::vector<ScopedSequentialHooks> parts;

 private:
  void add_unit(const UnitPlan& unit_plan, FlatParameterOptions options_of_flats, bool is_root);
  void sync_buffers();
  void surround();
};

}  // namespace accel::sharded

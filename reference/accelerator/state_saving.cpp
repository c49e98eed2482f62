#include "reference/accelerator/state_saving.hpp"

#include <torch/nn/module.h>

#include <exception>
#include <filesystem>

#include "reference/checkpoint/module_state.hpp"
#include "reference/core/errors.hpp"
#include "reference/optim/optimizers/optimizer_state.hpp"
#include "reference/prepared/parameter_layouts.hpp"

namespace accel {

// The handle shares `checkpointing_`, so it may outlive the Accelerator. Hooks are in a std::list, whose iterators stay
// valid when other hooks are added or removed.
StateSaving::HookHandle StateSaving::register_save_state_pre_hook(Checkpointing::SaveHook hook) {
  auto& hooks = checkpointing_->save_hooks;
  return HookHandle([checkpointing = checkpointing_, place = hooks.insert(hooks.end(), std::move(hook))] {
    checkpointing->save_hooks.erase(place);
  });
}

StateSaving::HookHandle StateSaving::register_load_state_pre_hook(Checkpointing::LoadHook hook) {
  auto& hooks = checkpointing_->load_hooks;
  return HookHandle([checkpointing = checkpointing_, place = hooks.insert(hooks.end(), std::move(hook))] {
    checkpointing->load_hooks.erase(place);
  });
}

std::string StateSaving::library_call(const char* name, const std::string& path) {
  const auto folder = std::filesystem::path(path);
  const auto last = folder.has_filename() ? folder.filename() : folder.parent_path().filename();
  return fmt::format("{}({})", name, last.string());
}

TrainingState::Custom StateSaving::custom_module(std::shared_ptr<torch::nn::Module> module) {
  return {[module] { return checkpoint::value_of(*module); },
          [module](const Value& state) { checkpoint::load_value(*module, state); }, module,
          std::make_shared<ParameterLayouts>(*module)};
}

TrainingState::Custom StateSaving::custom_optimizer(std::shared_ptr<torch::optim::Optimizer> optimizer) {
  return {[optimizer] { return optim::state_dict(*optimizer); },
          [optimizer](const Value& state) { optim::load_state_dict(*optimizer, state); },
          {},
          {},
          optimizer};
}

StateSaving::GatheredParameters::GatheredParameters(std::shared_ptr<ParallelModel> model, const Group& world,
                                                    std::optional<int> modifier_rank)
    : model_(std::move(model)), world_(&world), modifier_rank_(modifier_rank), uncaught_(std::uncaught_exceptions()) {
  check_argument(
      !modifier_rank || (*modifier_rank >= 0 && *modifier_rank < world.size()),
      "gathered_parameters: modifier_rank {} is out of range for {} ranks; expected 0 or more and less than {}",
      modifier_rank.value_or(0), world.size(), world.size());
  model_->gather_parameters();
}

StateSaving::GatheredParameters::~GatheredParameters() noexcept(false) {
  // After an exception in the scope only this rank may be here: release without the broadcast of changes.
  const bool takes_changes = std::uncaught_exceptions() == uncaught_;
  model_->release_parameters(*world_, takes_changes ? modifier_rank_ : std::nullopt);
}

std::optional<at::ScalarType> StateSaving::saved_dtype() const {
  if (!plugin().saves_16bit_model || mixed_precision() == "no") return std::nullopt;
  return mixed_precision() == "fp16" ? at::kHalf : at::kBFloat16;
}

}  // namespace accel

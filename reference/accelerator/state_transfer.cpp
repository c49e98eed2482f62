#include "reference/accelerator/state_transfer.hpp"

#include "reference/checkpoint/module_state.hpp"
#include "reference/core/errors.hpp"
#include "reference/optim/optimizers/optimizer_state.hpp"
#include "reference/rank_local/random.hpp"
#include "reference/state/rng_sync.hpp"

namespace accel {
namespace {

// Loads entry after entry of a list into the objects of this rank.
template <typename Objects, typename Load>
void load_each(const char* what, const Value& saved, Objects& objects, const Load& load) {
  const auto& list = saved.as<Value::List>();
  check_config(list.size() == objects.size(),
               "elastic: the other ranks have {} {}, and the one that joins {}; start it with the same program",
               list.size(), what, objects.size());
  for (std::size_t index = 0; index < list.size(); ++index) {
    try {
      load(objects[index], list[index]);
    } catch (const Error& error) {
      throw ConfigError(fmt::format("elastic: {} {} of the rank that joins: {}", what, index, error.what()));
    }
  }
}

}  // namespace

Value transferred_state(TrainingState& training, const RankContext& context) {
  Value::List models, optimizers, were_skipped, custom, epochs;
  for (const auto& model : training.models) models.push_back(checkpoint::value_of(*model->module()));
  for (const auto& optimizer : training.optimizers) {
    optimizers.push_back(optim::state_dict(optimizer.optimizer()));
    were_skipped.emplace_back(optimizer.step_was_skipped());
  }
  for (const auto& object : training.custom) custom.push_back(object.state_dict());
  for (const auto& weak : training.loaders) {
    const auto loader = weak.lock();
    epochs.push_back(loader ? Value(loader->iteration()) : Value());
  }
  auto generator = context.generator;
  auto* const scaler = training.path->scaler();
  return Value::Dict{
      {"models", std::move(models)},
      {"optimizers", std::move(optimizers)},
      {"skipped", std::move(were_skipped)},
      {"custom", std::move(custom)},
      {"loaders", std::move(epochs)},
      {"scaler", scaler != nullptr ? scaler->state_dict() : Value()},
      {"generator", generator.get_state()},
      {"device_generator", context.device.is_cpu() ? Value() : Value(device_generator(context).get_state())}};
}

void take_over(TrainingState& training, RankContext& context, const Value& state) {
  load_each("models", state.at("models"), training.models,
            [](const auto& model, const Value& saved) { checkpoint::load_value(*model->module(), saved); });
  load_each("optimizers", state.at("optimizers"), training.optimizers,
            [](auto& optimizer, const Value& saved) { optim::load_state_dict(optimizer.optimizer(), saved); });
  load_each("optimizers", state.at("skipped"), training.optimizers,
            [](auto& optimizer, const Value& saved) { optimizer.set_step_was_skipped(saved.as<bool>()); });
  load_each("registered objects", state.at("custom"), training.custom,
            [](const auto& object, const Value& saved) { object.load_state_dict(saved); });
  load_each("loaders", state.at("loaders"), training.loaders, [](const auto& weak, const Value& saved) {
    const auto loader = weak.lock();
    if (loader && !saved.is_null()) loader->set_epoch(saved.as<std::int64_t>());
  });
  if (auto* const scaler = training.path->scaler(); scaler != nullptr && !state.at("scaler").is_null())
    scaler->load_state_dict(state.at("scaler"));
  restore_generator(context.generator, state.at("generator").as<at::Tensor>());
  if (const auto& of_device = state.at("device_generator"); !context.device.is_cpu() && !of_device.is_null())
    device_generator(context).set_state(of_device.as<at::Tensor>());
}

}  // namespace accel

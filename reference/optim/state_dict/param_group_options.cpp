#include "reference/optim/state_dict/param_group_options.hpp"

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "reference/core/errors.hpp"

// Access to the momentum of parameter groups for the schedules that cycle it.
namespace accel::optim {
namespace {

// Calls `use` with the options in their actual class; returns false if they have no momentum. LibTorch's options have
// no common interface for it, so the classes are tried one by one.
template <typename Options, typename Use>
bool with_momentum(Options& options, Use&& use) {
  const auto try_as = [&]<typename T>(T*) {
    auto* known = dynamic_cast<std::conditional_t<std::is_const_v<Options>, const T, T>*>(&options);
    if (known != nullptr) use(*known);
    return known != nullptr;
  };
  return try_as(static_cast<torch::optim::SGDOptions*>(nullptr)) ||
         try_as(static_cast<torch::optim::RMSpropOptions*>(nullptr)) ||
         try_as(static_cast<torch::optim::AdamOptions*>(nullptr)) ||
         try_as(static_cast<torch::optim::AdamWOptions*>(nullptr));
}

template <typename Options>
constexpr bool kHasBetas = requires(Options& options) { options.betas(); };

}  // namespace

// This library's options are asked first: they may also derive from one of LibTorch's classes.
std::optional<MomentumKind> momentum_kind(const torch::optim::OptimizerOptions& options) {
  if (const auto* ours = dynamic_cast<const ParamGroupOptions*>(&options)) {
    if (!ours->get_momentum()) return std::nullopt;
    return ours->momentum_is_beta1() ? MomentumKind::kBeta1 : MomentumKind::kMomentum;
  }
  std::optional<MomentumKind> kind;
  with_momentum(options, [&]<typename Known>(Known&) {
    kind = kHasBetas<Known> ? MomentumKind::kBeta1 : MomentumKind::kMomentum;
  });
  return kind;
}

// Options of this library without momentum fall through and fail below, as those of LibTorch do.
double momentum_of(const torch::optim::OptimizerOptions& options) {
  if (const auto* ours = dynamic_cast<const ParamGroupOptions*>(&options); ours != nullptr && ours->get_momentum())
    return *ours->get_momentum();
  double momentum = 0.0;
  const bool found = with_momentum(options, [&]<typename Known>(Known& known) {
    if constexpr (kHasBetas<Known>) {
      momentum = std::get<0>(known.betas());
    } else {
      momentum = known.momentum();
    }
  });
  ensure(found, "momentum_of: the parameter group has neither momentum nor betas");
  return momentum;
}

void set_momentum(torch::optim::OptimizerOptions& options, double momentum) {
  if (auto* ours = dynamic_cast<ParamGroupOptions*>(&options); ours != nullptr && ours->get_momentum()) {
    ours->set_momentum(momentum);
    return;
  }
  const bool found = with_momentum(options, [&]<typename Known>(Known& known) {
    if constexpr (kHasBetas<Known>) {
      // Only the first beta takes part in momentum cycling.
      known.betas({momentum, std::get<1>(known.betas())});
    } else {
      known.momentum(momentum);
    }
  });
  ensure(found, "set_momentum: the parameter group has neither momentum nor betas");
}

}  // namespace accel::optim

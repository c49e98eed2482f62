#pragma once

#include <tuple>

#include "reference/optim/optimizers/adadelta.hpp"
#include "reference/optim/optimizers/adafactor.hpp"
#include "reference/optim/optimizers/adam_variants.hpp"
#include "reference/optim/optimizers/asgd.hpp"
#include "reference/optim/optimizers/fused_adagrad.hpp"
#include "reference/optim/optimizers/fused_adam.hpp"
#include "reference/optim/optimizers/fused_sgd.hpp"
#include "reference/optim/optimizers/lion.hpp"
#include "reference/optim/optimizers/muon.hpp"
#include "reference/optim/optimizers/rmsprop.hpp"
#include "reference/optim/optimizers/rprop.hpp"
#include "reference/optim/optimizers/sparse_adam.hpp"

/// All optimizers of this library, and their names.
///
///     accel::optim::NAdam optimizer(net->parameters(), {.lr = 2e-3});
///
/// To add an optimizer, write its header and source, and list them here and in reference/CMakeLists.txt. Experiments,
/// DeepSpeed files, state dicts of LibTorch's classes and the tests of all optimizers iterate over `kOptimizers`.
/// Thread rule: constants.
namespace accel::optim {

/// `Options::kName` is the name of Python's class.
template <typename Options>
struct OptimizerEntry {
  const char* experiment;              ///< its name in YAML experiments
  const char* deepspeed = nullptr;     ///< its type in a DeepSpeed file; null: not in DeepSpeed
  bool deepspeed_in_any_case = false;  ///< DeepSpeed compares the names of its own optimizers in lower case
};

inline constexpr std::tuple kOptimizers{
    OptimizerEntry<AdamOptions>{"adam", "Adam", /*deepspeed_in_any_case=*/true},
    OptimizerEntry<AdamWOptions>{"adamw", "AdamW", /*deepspeed_in_any_case=*/true},
    OptimizerEntry<AdagradOptions>{"adagrad", "Adagrad", /*deepspeed_in_any_case=*/true},
    OptimizerEntry<SGDOptions>{"fused_sgd", "SGD"},
    OptimizerEntry<RMSpropOptions>{"rmsprop", "RMSprop"},
    OptimizerEntry<AdadeltaOptions>{"adadelta", "Adadelta"},
    OptimizerEntry<AdamaxOptions>{"adamax", "Adamax"},
    OptimizerEntry<NAdamOptions>{"nadam", "NAdam"},
    OptimizerEntry<RAdamOptions>{"radam", "RAdam"},
    OptimizerEntry<RpropOptions>{"rprop", "Rprop"},
    OptimizerEntry<ASGDOptions>{"asgd", "ASGD"},
    OptimizerEntry<AdafactorOptions>{"adafactor", "Adafactor"},
    OptimizerEntry<SparseAdamOptions>{"sparse_adam"},
    OptimizerEntry<MuonOptions>{"muon"},  // DeepSpeed's "Muon" is another optimizer
    OptimizerEntry<LionOptions>{"lion", "Lion", /*deepspeed_in_any_case=*/true},
};

/// Calls `visit(entry)` for every optimizer: `[&]<typename Options>(const OptimizerEntry<Options>& entry) { ... }`.
template <typename Visit>
void for_each_optimizer(Visit&& visit) {
  std::apply([&](const auto&... entry) { (visit(entry), ...); }, kOptimizers);
}

/// `List` of all optimizers' options: `std::variant<AdamOptions, ...>` is `OptionsOfAll<std::variant>`.
template <template <typename...> typename List, typename Entries = std::remove_const_t<decltype(kOptimizers)>>
struct OptionsOfAllIn;
template <template <typename...> typename List, typename... Options>
struct OptionsOfAllIn<List, std::tuple<OptimizerEntry<Options>...>> {
  using type = List<Options...>;
};
template <template <typename...> typename List>
using OptionsOfAll = typename OptionsOfAllIn<List>::type;

}  // namespace accel::optim

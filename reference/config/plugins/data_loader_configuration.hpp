#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "reference/config/field.hpp"

namespace accel {

/// How loaders are sharded. Source: accelerate/utils/dataclasses.py.
struct DataLoaderConfiguration {
  bool split_batches = false;  ///< divide each batch between the ranks; batch_size must be a multiple of their number
  /// Rank 0 reads for all ranks. Default: for iterable datasets, if device_placement is on.
  std::optional<bool> dispatch_batches = {};
  bool even_batches = true;  ///< wrap around to the first samples, so that every rank has the same number of batches
  bool use_seedable_sampler = false;           ///< the order depends only on (data_seed, epoch)
  std::optional<std::int64_t> data_seed = {};  ///< default: the seed of the rank's default generator at prepare
  bool non_blocking = false;
  bool use_stateful_dataloader = false;  ///< accepted without effect: every loader has state_dict and load_state_dict
  /// "elastic": the steps of an epoch do not depend on the number of ranks. batch_size is the total of all ranks, the
  /// order depends only on (data_seed, epoch), and the last step is padded even on a single rank.
  std::string order = "accelerate";

  [[nodiscard]] bool is_elastic() const { return order == "elastic"; }
  [[nodiscard]] bool splits() const { return split_batches || is_elastic(); }
  [[nodiscard]] bool seeds_order() const { return use_seedable_sampler || is_elastic(); }
};

inline constexpr const char* kOrders[] = {"accelerate", "elastic"};

/// In the order of a command line's help. Requests of `sim-run plan` accept the fields that have a flag.
template <FieldsOf<DataLoaderConfiguration> Config, typename Visit>
void for_each_field(Config& config, Visit&& visit) {
  visit(Field{.name = "data_seed", .flag = "--data-seed", .help = "Seed of the seedable sampler"}, config.data_seed);
  visit(Field{.name = "split_batches", .flag = "--split-batches", .help = "Divide each batch between the ranks"},
        config.split_batches);
  visit(Field{.name = "even_batches",
              .flag = "--even-batches,!--no-even-batches",
              .help = "Pad, so that every rank has the same number of batches (default)"},
        config.even_batches);
  visit(Field{.name = "dispatch_batches",
              .flag = "--dispatch-batches",
              .help = "true: rank 0 reads for all ranks; false: every rank reads"},
        config.dispatch_batches);
  visit(Field{.name = "use_seedable_sampler",
              .flag = "--use-seedable-sampler,!--no-use-seedable-sampler",
              .help = "The order depends only on seed and epoch"},
        config.use_seedable_sampler);
  visit(Field{.name = "non_blocking"}, config.non_blocking);
  visit(Field{.name = "use_stateful_dataloader"}, config.use_stateful_dataloader);
  visit(Field{.name = "order", .rule = {.choices = kOrders}}, config.order);
}

}  // namespace accel

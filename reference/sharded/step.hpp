#pragma once

#include <memory>
#include <string>
#include <vector>

#include "reference/config/plugins/sharding.hpp"
#include "reference/modules/call.hpp"
#include "reference/sharded/flat_parameter.hpp"

namespace torch::autograd {
class PostAccumulateGradHook;
}

/// The executor of a unit plan: decides when each unit is gathered, freed and reduced during a step. Thread rule: the
/// rank's thread.
namespace accel::sharded {

class Unit;

/// The units of one model, and the progress of the current step.
class Step {
 public:
  /// Keeps both references and reads them during every step. `device`: where units compute.
  Step(const ShardingOptions& options, const bool& sync_gradients, c10::Device device)
      : options_(options), sync_gradients_(sync_gradients), device_(device) {}

  void add(Unit* unit) { units_.push_back(unit); }
  [[nodiscard]] const ShardingOptions& options() const { return options_; }
  /// Starts the model's forward; clears what an exception left behind in the last step.
  void begin_forward();
  void ran_forward(Unit& unit);
  void begin_backward(Unit& unit);
  /// Starts to gather the unit that follows `unit` in forward (or in backward, for prefetch_before), if it is known.
  void prefetch_after(const Unit& unit);
  void prefetch_before(const Unit& unit);
  void gradients_ready();
  /// Waits for the device if it may still copy between itself and offloaded shards or their gradients.
  void finish_copies();
  /// Parameters show shards, whatever state the step was in.
  void show_shards();
  /// Gathers all units in the stored dtype and keeps them full until show_shards.
  void gather_stored();
  [[nodiscard]] bool keeps_parameters_gathered() const { return keeps_parameters_gathered_; }
  void mark_stepped();
  /// Units stay gathered, and their gradients full, until end_hold, which ends the backward pass: for micro-batches
  /// whose forwards and backwards alternate.
  void begin_hold();
  void end_hold();
  [[nodiscard]] bool is_holding() const { return is_holding_; }

 private:
  void adopt_edits();
  /// Not for large units, as the options say.
  void begin_gather_ahead(Unit& unit) const;
  void reduce_next();
  void advance_reductions();
  void finish_reductions();
  void end_backward();

  const ShardingOptions& options_;
  const bool& sync_gradients_;
  c10::Device device_;
  std::vector<Unit*> units_;
  std::vector<Unit*> order_, last_order_;  // units in the order of this step's and of the last step's forward
  bool in_backward_ = false, keeps_parameters_gathered_ = false, is_holding_ = false;
  std::size_t num_to_reduce_ = 0;  // the first so many units of order_ still await their reduction
  Unit *reducing_ = nullptr, *reducing_replicas_ = nullptr;
};

/// One unit's part of a step.
class Unit : public ModuleHooks, public std::enable_shared_from_this<Unit> {
 public:
  Unit(const UnitPlan& plan, std::vector<std::unique_ptr<FlatParameter>> flats, Step& step, bool is_root);

  void before_forward() override;
  void after_forward(std::vector<at::Tensor>& outputs) override;
  [[nodiscard]] bool recomputes() const override { return step_.options().activation_checkpointing && !is_root_; }
  /// See FlatParameter.
  void follow_parameters();
  void adopt_edits();
  /// Called when a gradient of the unit's outputs or parameters has been computed; only the first call counts.
  void before_backward();
  void on_gradient_ready(FlatParameter& flat, std::size_t parameter);

  void begin_gather();
  void gather();
  void begin_hold();
  void gather_stored();
  void release();
  [[nodiscard]] bool needs_reduction() const { return num_trained_flats_ > 0; }
  /// Whether no further gradients can arrive. A unit that ran twice may receive them twice if its activations are
  /// recomputed.
  [[nodiscard]] bool is_ready() const { return num_waiting_ <= 0 && num_forwards_ == 1 && !waits_for_end_; }
  /// Marks a unit nested in one or more recomputed units: gradients may arrive until the backward pass ends.
  void wait_for_end() { waits_for_end_ = true; }
  void begin_reduce();
  /// See FlatParameter.
  bool begin_replica_reduce();
  void finish_reduce();
  [[nodiscard]] bool has_pending_copies() const;
  void finish_copies();
  /// Ends the step after a complete or interrupted backward.
  void end_step(bool reduced);
  void drop_full_gradients();

  const std::string name, class_name;
  const std::int64_t numel;
  const std::vector<std::unique_ptr<FlatParameter>> flats;
  bool was_run = false;  ///< whether the model's last forward called this unit

 private:
  void release_trained();

  Step& step_;
  bool is_root_;
  bool backward_began_ = false, waits_for_end_ = false;
  int num_forwards_ = 0;
  std::ptrdiff_t num_trained_flats_ = 0, num_waiting_ = 0;
};

/// Returns a hook that notifies the unit of each full gradient after autograd has accumulated it.
std::unique_ptr<torch::autograd::PostAccumulateGradHook> gradient_hook(std::weak_ptr<Unit> unit, FlatParameter& flat,
                                                                       std::size_t parameter);

}  // namespace accel::sharded

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "reference/config/sharding.hpp"
#include "reference/modules/call.hpp"
#include "reference/sharded/flat_parameter.hpp"

namespace torch::autograd {
class PostAccumulateGradHook;
}

/// The executor of a plan of units: when each is gathered, freed and reduced while a step goes on. Thread rule: the
/// rank's thread.
namespace accel::sharded {

class Unit;

/// The units of one model, and how far a step has come.
class Step {
 public:
  /// Both are read as the step goes on.
  Step(const ShardingOptions& options, const bool& sync_gradients)
      : options_(options), sync_gradients_(sync_gradients) {}

  void add(Unit* unit) { units_.push_back(unit); }
  [[nodiscard]] const ShardingOptions& options() const { return options_; }
  /// Of the model: what an exception left of the last step is cleared away.
  void begin_forward();
  void ran_forward(Unit& unit);
  void begin_backward(Unit& unit);
  /// Of the unit that comes next in forward, or in backward, if that is known.
  void prefetch_after(const Unit& unit);
  void prefetch_before(const Unit& unit);
  void gradients_ready();
  /// Parameters show shards, whatever the step was at.
  void show_shards();
  /// All units stay whole, whoever calls them, until shards are shown.
  void gather_stored();
  [[nodiscard]] bool stays_whole() const { return stays_whole_; }
  void mark_stepped();

 private:
  void reduce_next();
  void finish_reduction();
  void end_backward();

  const ShardingOptions& options_;
  const bool& sync_gradients_;
  std::vector<Unit*> units_;
  std::vector<Unit*> order_, last_order_;  // of this step's forward, and of the last one's
  bool in_backward_ = false, stays_whole_ = false;
  std::size_t num_to_reduce_ = 0;  // units of order_ whose gradients are still to be reduced: the first ones
  Unit* reducing_ = nullptr;
};

/// A unit's part of a step.
class Unit : public CallSurround, public std::enable_shared_from_this<Unit> {
 public:
  Unit(const UnitPlan& plan, std::vector<std::unique_ptr<FlatParameter>> flats, Step& step, bool is_root);

  void before_forward() override;
  void after_forward(std::vector<at::Tensor>& outputs) override;
  [[nodiscard]] bool recomputes() const override { return step_.options().activation_checkpointing && !is_root_; }
  /// A gradient of its outputs, or of its parameters, is there.
  void before_backward();
  void gradient_came(FlatParameter& flat, std::size_t parameter);

  void begin_gather();
  void gather();
  void gather_stored();
  void release();
  [[nodiscard]] bool needs_reduction() const { return num_trained_flats_ > 0; }
  /// Whether no more gradients come. A unit that ran twice may get them twice, if its activations are recomputed.
  [[nodiscard]] bool is_ready() const { return num_waiting_ <= 0 && num_forwards_ == 1 && !waits_for_end_; }
  /// It is part of a unit that is recomputed, perhaps of several: gradients may come until the pass ends.
  void wait_for_end() { waits_for_end_ = true; }
  void begin_reduce();
  void finish_reduce();
  /// Behind a backward, whole or cut off.
  void end_step(bool reduced);
  void drop_whole_gradients();

  const std::string name, class_name;
  const std::vector<std::unique_ptr<FlatParameter>> flats;
  bool was_run = false;  ///< in the model's last forward

 private:
  void release_trained();

  Step& step_;
  bool is_root_;
  bool backward_began_ = false, waits_for_end_ = false;
  int num_forwards_ = 0;
  std::ptrdiff_t num_trained_flats_, num_waiting_;
};

/// Tells a unit of each whole gradient, when autograd has put it in its place.
std::unique_ptr<torch::autograd::PostAccumulateGradHook> gradient_hook(std::weak_ptr<Unit> unit, FlatParameter& flat,
                                                                       std::size_t parameter);

}  // namespace accel::sharded

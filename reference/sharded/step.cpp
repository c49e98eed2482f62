#include "reference/sharded/step.hpp"

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>

#include <algorithm>

#include "reference/core/device.hpp"
#include "reference/core/errors.hpp"

// When units are gathered, freed and reduced. All collectives of a step must have the same order on every rank,
// although backward may compute gradients in any order and a loss may skip units. Gathers follow the order of calls,
// which the ranks share; reductions follow Note [Order of reductions]. Source:
// torch/distributed/fsdp/_runtime_utils.py.
namespace accel::sharded {

Unit::Unit(const UnitPlan& plan, std::vector<std::unique_ptr<FlatParameter>> flats, Step& step, bool is_root)
    : name(plan.name),
      class_name(plan.class_name),
      numel(plan.numel()),
      flats(std::move(flats)),
      step_(step),
      is_root_(is_root) {
  follow_parameters();
}

void Unit::follow_parameters() {
  for (auto& flat : flats) flat->follow_parameters();
  num_trained_flats_ = std::ranges::count_if(flats, [](const auto& flat) { return flat->requires_grad(); });
  num_waiting_ = num_trained_flats_;
}

void Unit::adopt_edits() {
  for (auto& flat : flats) flat->adopt_edits();
}

void Unit::before_forward() {
  if (step_.keeps_parameters_gathered()) {
    check_state(!c10::GradMode::is_enabled(),
                "gathered_parameters: the model was called with gradients enabled inside the scope; call it after the "
                "scope ends, or under a NoGradGuard");
    return;
  }
  was_run = true;
  if (step_.is_holding()) return;
  gather();
  // With backward_began_ this call is a recomputation of activations, which is not part of the forward order.
  if (!c10::GradMode::is_enabled() || backward_began_) return;
  ++num_forwards_;
  step_.ran_forward(*this);
  if (*step_.options().forward_prefetch) step_.prefetch_after(*this);
}

void Unit::after_forward(std::vector<at::Tensor>& outputs) {
  if (backward_began_ || step_.keeps_parameters_gathered() || step_.is_holding()) return;
  bool needs_backward = false;
  for (const auto& output : outputs) {
    if (!c10::GradMode::is_enabled() || !output.requires_grad()) continue;
    needs_backward = true;
    // On tensors, not on the module: LibTorch has no module hooks. Weak, because the graph may outlive the model.
    output.register_hook([unit = weak_from_this()](const at::Tensor& /*gradient*/) {
      if (const auto here = unit.lock()) here->before_backward();
    });
  }
  // The root stays gathered even with resharding: backward starts with it, as in FSDP1.
  if (!needs_backward || (!is_root_ && step_.options().reshard_after_forward)) release();
}

// Stashing comes before the gather: afterwards the parameters have their full shape, and autograd may add to them.
void Unit::before_backward() {
  check_state(
      !c10::GradMode::is_enabled(),
      "backward with create_graph is unsupported for sharded models, whose parameters are freed before a second "
      "backward pass would use them; train without fsdp_plugin and deepspeed_plugin, or compute the gradient "
      "penalty without create_graph");
  if (std::exchange(backward_began_, true)) return;
  step_.begin_backward(*this);
  for (auto& flat : flats) {
    if (flat->requires_grad()) flat->stash_gradients();
  }
  gather();
  if (step_.options().prefetch == Prefetch::kBackwardPre) step_.prefetch_before(*this);
}

// A unit is released as soon as its last gradient arrived, before the reduction: its full parameters and the bucket
// would otherwise exist at the same time.
void Unit::on_gradient_ready(FlatParameter& flat, std::size_t parameter) {
  if (!flat.count_gradient(parameter) || step_.is_holding() || --num_waiting_ > 0) return;
  if (is_ready()) release_trained();
  if (step_.options().prefetch == Prefetch::kBackwardPost) step_.prefetch_before(*this);
  step_.gradients_ready();
}

void Unit::begin_gather() {
  for (auto& flat : flats) flat->begin_gather();
}

void Unit::gather() {
  begin_gather();
  for (auto& flat : flats) flat->finish_gather();
}

void Unit::begin_hold() {
  backward_began_ = true;
  for (auto& flat : flats) {
    if (flat->requires_grad()) flat->stash_gradients();
  }
  gather();
}

void Unit::gather_stored() {
  for (auto& flat : flats) flat->gather_stored();
}

void Unit::release() {
  for (auto& flat : flats) flat->release();
}

// Backward needs trained parameters no longer; through frozen ones, gradients may still flow to earlier layers.
void Unit::release_trained() {
  for (auto& flat : flats) {
    if (flat->requires_grad()) flat->release();
  }
}

void Unit::begin_reduce() {
  for (auto& flat : flats) {
    if (!flat->requires_grad()) continue;
    if (!backward_began_) flat->stash_gradients();  // the loss did not depend on this unit
    flat->begin_reduce();
  }
}

bool Unit::begin_replica_reduce() {
  bool has_replicas = false;
  for (auto& flat : flats) {
    if (flat->requires_grad() && flat->begin_replica_reduce()) has_replicas = true;
  }
  return has_replicas;
}

void Unit::finish_reduce() {
  for (auto& flat : flats) {
    if (flat->requires_grad()) flat->finish_reduce();
  }
}

bool Unit::has_pending_copies() const {
  return std::any_of(flats.begin(), flats.end(), [](const auto& flat) { return flat->has_pending_copies(); });
}

void Unit::finish_copies() {
  for (auto& flat : flats) flat->finish_copies();
}

void Unit::end_step(bool reduced) {
  for (auto& flat : flats) {
    if (flat->requires_grad() && !reduced) flat->restore_gradients();
  }
  release();
  backward_began_ = waits_for_end_ = false;
  num_forwards_ = 0;
  num_waiting_ = num_trained_flats_;
}

void Unit::drop_full_gradients() {
  for (auto& flat : flats) flat->drop_full_gradients();
}

// in_backward_ is still set here only if an exception left the last backward.
void Step::begin_forward() {
  if (is_holding_) return;
  if (in_backward_) show_shards();
  adopt_edits();
  // A second forward of a step must not change which gradients the first one expects.
  if (!c10::GradMode::is_enabled() || !order_.empty()) return;
  for (auto* unit : units_) unit->follow_parameters();
}

// What becomes of changes inside gather_stored's scope is decided at its end.
void Step::adopt_edits() {
  if (keeps_parameters_gathered_) return;
  for (auto* unit : units_) unit->adopt_edits();
}

void Step::ran_forward(Unit& unit) {
  if (std::find(order_.begin(), order_.end(), &unit) != order_.end()) return;
  if (!in_backward_) {
    order_.push_back(&unit);
    return;
  }
  // A unit nested in a recomputed unit runs its first forward with gradients now. It is inserted before the units that
  // were already reduced, and waits, because gradients of the enclosing unit arrive later.
  unit.wait_for_end();
  order_.insert(order_.begin() + static_cast<std::ptrdiff_t>(num_to_reduce_), &unit);
  ++num_to_reduce_;
}

// The next unit is guessed from the last step. A wrong guess costs memory and traffic, but not correctness; all ranks
// guess alike because they run the same units.
void Step::prefetch_after(const Unit& unit) {
  const auto place = std::find(last_order_.begin(), last_order_.end(), &unit);
  if (place != last_order_.end() && place + 1 != last_order_.end()) begin_gather_ahead(**(place + 1));
}

void Step::prefetch_before(const Unit& unit) {
  const auto place = std::find(order_.begin(), order_.end(), &unit);
  if (place != order_.end() && place != order_.begin()) begin_gather_ahead(**(place - 1));
}

void Step::begin_gather_ahead(Unit& unit) const {
  if (unit.numel <= options_.max_prefetched_numel) unit.begin_gather();
}

void Step::begin_backward(Unit& unit) {
  if (!std::exchange(in_backward_, true)) {
    num_to_reduce_ = order_.size();
    // The engine calls it after the last gradient of this pass. Nothing else sees the end of a backward pass. A pass
    // that throws skips it; begin_forward and show_shards clean up then.
    torch::autograd::Engine::get_default_engine().queue_callback([this] { end_backward(); });
  }
  if (std::find(order_.begin(), order_.end(), &unit) != order_.end()) return;
  order_.insert(order_.begin(), &unit);  // a second backward through one forward meets units in reverse
  ++num_to_reduce_;
}

// Note [Order of reductions]
// Units are reduced in the reverse order of forward on every rank. A unit whose gradients arrive early waits for those
// after it in forward; units that a rank's loss skipped are reduced with zeros in end_backward. If ranks reduced units
// as gradients arrive, different units would meet in one collective.
void Step::gradients_ready() {
  if (!sync_gradients_) return;
  while (num_to_reduce_ > 0 && order_[num_to_reduce_ - 1]->is_ready()) reduce_next();
}

void Step::reduce_next() {
  auto* unit = order_[--num_to_reduce_];
  if (!unit->needs_reduction()) return;
  advance_reductions();
  unit->begin_reduce();
  reducing_ = unit;
}

// At most one bucket exists at a time, which bounds memory. Replicas of hybrid sharding sum the shards of one unit
// while the next unit computes and is reduced.
void Step::advance_reductions() {
  if (auto* unit = std::exchange(reducing_replicas_, nullptr)) unit->finish_reduce();
  auto* unit = std::exchange(reducing_, nullptr);
  if (unit == nullptr) return;
  if (unit->begin_replica_reduce())
    reducing_replicas_ = unit;
  else
    unit->finish_reduce();
}

// Gradients of offloaded shards arrive on the host together, so that it waits for the device once.
void Step::finish_reductions() {
  advance_reductions();
  advance_reductions();
  finish_copies();
}

void Step::finish_copies() {
  if (std::none_of(units_.begin(), units_.end(), [](const auto* unit) { return unit->has_pending_copies(); })) return;
  wait_for(device_);
  for (auto* unit : units_) unit->finish_copies();
}

// Reduces what is left, including units without gradients on this rank, since other ranks may have some.
void Step::end_backward() {
  if (sync_gradients_) {
    while (num_to_reduce_ > 0) reduce_next();
    finish_reductions();
  }
  for (auto* unit : units_) unit->end_step(/*reduced=*/sync_gradients_);
  last_order_ = std::exchange(order_, {});
  in_backward_ = false;
}

void Step::begin_hold() {
  if (is_holding_) show_shards();  // an error has left it
  begin_forward();
  for (auto* unit : units_) unit->begin_hold();
  is_holding_ = in_backward_ = true;
}

void Step::end_hold() {
  is_holding_ = false;
  order_ = units_;
  num_to_reduce_ = order_.size();
  end_backward();
}

void Step::gather_stored() {
  show_shards();
  for (auto* unit : units_) unit->gather_stored();
  keeps_parameters_gathered_ = true;
}

void Step::show_shards() {
  adopt_edits();
  keeps_parameters_gathered_ = is_holding_ = false;
  for (auto* unit : units_) {
    if (in_backward_) unit->drop_full_gradients();  // the backward pass was interrupted
    unit->end_step(/*reduced=*/false);
  }
  finish_copies();
  order_.clear();
  reducing_ = reducing_replicas_ = nullptr;
  in_backward_ = false;
}

void Step::mark_stepped() {
  for (auto* unit : units_) {
    for (auto& flat : unit->flats) flat->mark_stale();
  }
}

namespace {

// Owned by the parameter's autograd metadata, so it may outlive the unit; `flat_` is valid while `unit_` locks.
class GradientHook : public torch::autograd::PostAccumulateGradHook {
 public:
  GradientHook(std::weak_ptr<Unit> unit, FlatParameter* flat, std::size_t parameter)
      : unit_(std::move(unit)), flat_(flat), parameter_(parameter) {}
  void operator()(const at::Tensor& /*parameter*/) override {
    if (const auto unit = unit_.lock()) unit->on_gradient_ready(*flat_, parameter_);
  }

 private:
  std::weak_ptr<Unit> unit_;
  FlatParameter* flat_;
  std::size_t parameter_;
};

}  // namespace

std::unique_ptr<torch::autograd::PostAccumulateGradHook> gradient_hook(std::weak_ptr<Unit> unit, FlatParameter& flat,
                                                                       std::size_t parameter) {
  return std::make_unique<GradientHook>(std::move(unit), &flat, parameter);
}

}  // namespace accel::sharded

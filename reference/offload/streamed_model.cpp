#include "reference/offload/streamed_model.hpp"

#include <c10/core/Event.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <future>
#include <map>

#include "reference/core/device.hpp"
#include "reference/core/errors.hpp"
#include "reference/modules/call.hpp"
#include "reference/offload/module_tensors.hpp"

// Loads and releases units around their calls. Everything except Slot::load runs on the rank's thread, so the state
// needs no lock; the future of `Ahead` is the only hand-over.
namespace accel::offload {

struct StreamedModel::State {
  using Values = std::map<std::size_t, at::Tensor>;  // by slot

  // The load of the unit that is expected next, on a worker thread. At most one is in flight, so that memory holds no
  // more than two units.
  class Ahead {
   public:
    ~Ahead() { drop(); }

    void begin(std::size_t unit, const std::function<Values()>& load) {
      drop();
      unit_ = unit;
      try {
        values_ = std::async(std::launch::async, load);
      } catch (const std::system_error&) {  // a limit of threads: take() loads
        values_ = std::async(std::launch::deferred, load);
      }
    }
    /// Waits for the values; nullopt, and the values are discarded, if they are those of another unit.
    std::optional<Values> take(std::size_t unit) {
      if (!values_.valid()) return std::nullopt;
      if (unit_ != unit) {
        drop();
        return std::nullopt;
      }
      return values_.get();
    }
    void drop() noexcept {
      // The destructor of the future would wait, too; waiting here keeps memory bounded before the next load starts.
      if (values_.valid()) values_.wait();
      values_ = {};
    }

   private:
    std::size_t unit_ = 0;
    std::future<Values> values_;
  };

  State(std::vector<Slot> slots, std::vector<StreamedUnit> units, bool prefetch, bool is_spread)
      : slots(std::move(slots)),
        units(std::move(units)),
        users(this->slots.size()),
        prefetch(prefetch),
        is_spread(is_spread) {
    for (std::size_t i = 0; i < this->units.size(); ++i) next.push_back(i + 1);
    was_called.resize(this->units.size());
  }

  // Loads what the unit needs and is not in memory yet, then starts to read the next unit.
  void bring(std::size_t unit) {
    was_called[unit] = true;
    const auto& needed = units[unit].slots;
    if (!needed.empty()) {
      const c10::NoGradGuard no_grad;
      const c10::InferenceMode normal(false);
      auto values = ahead.take(unit);
      // The bytes read ahead are now either shown, and counted per slot below, or discarded.
      count(-std::exchange(prefetched_bytes, 0));
      ++statistics.num_loads;
      statistics.num_prefetched += values ? 1 : 0;
      auto missing = load(away(needed, values ? &*values : nullptr));
      if (values) {
        if (side) side->join();
        for (const auto& [slot, value] : *values) {
          if (!value.is_cpu()) record_on_current_stream(value);
        }
        missing.merge(*values);
      }
      for (const auto slot : needed) {
        // Shared slots, and units called recursively, stay loaded until the last user is done.
        if (users[slot]++ > 0) continue;
        show(slots[slot].tensor, missing.at(slot));
        count(bytes(slot));
      }
    }
    begin_next(unit);
  }

  // Runs while an exception propagates, too. Changes to the values are lost: slots are for inference.
  void release(std::size_t unit) noexcept {
    for (const auto slot : units[unit].slots) {
      if (--users[slot] > 0) continue;
      count(-bytes(slot));
      show(slots[slot].tensor, slots[slot].away);
    }
    if (!side) return;
    released = std::make_shared<c10::Event>(side->stream().device_type());
    released->record(current_stream(side->stream().device()));
  }

  // Expects the units in the order of the last forward pass, which ends when its first unit is called again; during the
  // first pass, in the order of the model. A wrong guess only costs a load.
  void begin_next(std::size_t unit) {
    if (!first) first = unit;
    if (last) next[*last] = unit == *first ? units.size() : unit;
    last = unit;
    if (!prefetch || next[unit] >= units.size()) return;
    const auto wanted = away(units[next[unit]].slots, nullptr);
    // With prefetched_bytes > 0 a load for another unit is already in flight.
    if (wanted.empty() || prefetched_bytes > 0) return;
    for (const auto slot : wanted) prefetched_bytes += bytes(slot);
    count(prefetched_bytes);
    const auto device = units[next[unit]].input_device;
    if (device && !device->is_cpu() && (!side || side->stream().device() != *device)) side.emplace(*device);
    ahead.begin(next[unit], [this, wanted, before = std::exchange(released, nullptr)] {
      if (before) before->synchronize();
      return load_beside(wanted);
    });
  }

  // The slots of `needed` that neither a running unit nor `loaded` has in memory.
  [[nodiscard]] std::vector<std::size_t> away(const std::vector<std::size_t>& needed, const Values* loaded) const {
    std::vector<std::size_t> result;
    std::copy_if(needed.begin(), needed.end(), std::back_inserter(result),
                 [&](auto slot) { return users[slot] == 0 && (loaded == nullptr || !loaded->contains(slot)); });
    return result;
  }
  [[nodiscard]] Values load(const std::vector<std::size_t>& wanted) const {
    Values values;
    for (const auto slot : wanted) values.emplace(slot, slots[slot].load());
    return values;
  }

  // On the worker thread, and beside what the device computes. The worker has waited until the device was done with the
  // unit that was released before, so that its memory holds no more than two units.
  [[nodiscard]] Values load_beside(const std::vector<std::size_t>& wanted) const {
    if (!side) return load(wanted);
    const c10::StreamGuard beside(side->stream());
    return load(wanted);
  }

  [[nodiscard]] std::int64_t bytes(std::size_t slot) const {
    return slots[slot].away.numel() * static_cast<std::int64_t>(slots[slot].away.element_size());
  }
  void count(std::int64_t more) noexcept {
    statistics.bytes_now += more;
    // Tests compare the peak with max_memory, so everything loaded or in flight must pass through here.
    statistics.bytes_peak = std::max(statistics.bytes_peak, statistics.bytes_now);
  }

  std::vector<Slot> slots;
  std::vector<StreamedUnit> units;
  std::vector<int> users;  // per slot: running units that need it
  bool prefetch, is_spread;
  std::vector<std::size_t> next;           // per unit: the one expected after it; units.size() for none
  std::optional<std::size_t> first, last;  // the first unit of a pass, and the unit called last
  std::vector<bool> was_called;
  std::int64_t prefetched_bytes = 0;
  StreamStatistics statistics;
  std::vector<ScopedModuleHooks> calls;
  std::vector<ScopedSequentialHooks> parts;
  std::shared_ptr<c10::Event> released;  // when the device is done with the unit that was released last
  std::optional<SideStream> side;  // of the device that the next unit runs on; of the worker thread while it loads
  Ahead ahead;                     // last, so that its worker has finished before slots are destroyed
};

namespace {

// The hooks of one unit. Holds a plain reference: the hooks are removed when the StreamedModel is destroyed.
class UnitCall : public ModuleHooks {
 public:
  UnitCall(StreamedModel::State& state, std::size_t unit) : state_(state), unit_(unit) {}

  void before_forward() override {
    for (const auto slot : state_.units[unit_].slots)
      check_needs_no_gradient(state_.slots[slot].name, state_.slots[slot].tensor);
    state_.bring(unit_);
  }
  void after_forward(std::vector<at::Tensor>&) override { state_.release(unit_); }
  void forward_failed() noexcept override { state_.release(unit_); }
  [[nodiscard]] std::optional<c10::Device> input_device() const override { return state_.units[unit_].input_device; }
  [[nodiscard]] bool is_spread() const { return state_.is_spread; }
  void bring() { state_.bring(unit_); }
  void release() noexcept { state_.release(unit_); }

 private:
  StreamedModel::State& state_;
  std::size_t unit_;
};

}  // namespace

StreamedModel::StreamedModel(const std::shared_ptr<torch::nn::Module>& module, std::vector<Slot> slots,
                             std::vector<StreamedUnit> units, bool prefetch, bool is_spread)
    : state_(std::make_unique<State>(std::move(slots), std::move(units), prefetch, is_spread)) {
  for (std::size_t unit = 0; unit < state_->units.size(); ++unit)
    state_->calls.emplace_back(*state_->units[unit].module, std::make_shared<UnitCall>(*state_, unit));
  // After the hooks are registered, which may throw: the model is then still complete.
  for (const auto& slot : state_->slots) show(slot.tensor, slot.away);
  for (const auto& part : module->modules()) state_->parts.emplace_back(part);
}

StreamedModel::~StreamedModel() = default;

const StreamStatistics& StreamedModel::statistics() const { return state_->statistics; }

void StreamedModel::begin_pass() { state_->was_called.assign(state_->units.size(), false); }

std::vector<std::string> StreamedModel::uncalled() const {
  std::vector<std::string> names;
  for (std::size_t unit = 0; unit < state_->units.size(); ++unit) {
    if (!state_->was_called[unit]) names.push_back(state_->units[unit].name);
  }
  return names;
}

bool is_spread(const torch::nn::Module& module) {
  const auto is_unit = [](const torch::nn::Module& part) {
    const auto hooks = detail::hooks_of(part);
    const auto* unit = dynamic_cast<const UnitCall*>(hooks.get());
    return unit != nullptr && unit->is_spread();
  };
  const auto inside = module.modules(/*include_self=*/false);
  return is_unit(module) || std::any_of(inside.begin(), inside.end(), [&](const auto& part) { return is_unit(*part); });
}

LoadedUnit::LoadedUnit(const torch::nn::Module& module) : unit_(detail::hooks_of(module)) {
  // A module may have hooks of something else, for example of sharding; these are not ours to call.
  auto* unit = dynamic_cast<UnitCall*>(unit_.get());
  if (unit != nullptr)
    unit->bring();
  else
    unit_.reset();
}

LoadedUnit::~LoadedUnit() {
  if (unit_) static_cast<UnitCall&>(*unit_).release();
}

}  // namespace accel::offload

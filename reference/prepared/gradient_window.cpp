#include "reference/prepared/gradient_window.hpp"

#include <ATen/ops/tensor.h>

#include <cmath>

#include "reference/core/errors.hpp"

namespace accel {

// The window keeps only a weak reference: a micro-batch ends with the program's `accumulate` scope, not with a call.
std::shared_ptr<GradientWindow::MicroBatch> GradientWindow::begin_micro_batch() {
  items_of_micro_batch_.reset();
  auto micro_batch = std::make_shared<MicroBatch>();
  micro_batch_ = micro_batch;
  return micro_batch;
}

void GradientWindow::add(double items, double samples, std::optional<std::int64_t> batch) {
  if (items_of_micro_batch_) {
    check_argument(*items_of_micro_batch_ == items,
                   "backward: losses of one micro-batch have {} and {} items; expected the same number",
                   *items_of_micro_batch_, items);
    return;
  }
  const auto micro_batch = micro_batch_.lock();
  check_state(
      !micro_batch || !micro_batch->ended_longer_window || items == 0,
      "backward: an optimizer's step has already ended the accumulation window of this loss and weighted its "
      "gradients; with loss_weighting exact call backward for all losses of a micro-batch before the first step");
  items_of_micro_batch_ = items;
  items_ += items;
  // Several losses of one batch (for example of two models) must count its samples once.
  const bool is_counted = micro_batch ? micro_batch->is_counted : batch && batch == counted_batch_;
  if (!is_counted) samples_ += samples;
  if (micro_batch) micro_batch->is_counted = true;
  counted_batch_ = batch;
  ++num_micro_batches_;
  any_ = true;
}

// Sums of integral counts are exact in float64, so the scale does not depend on the order of summation.
GradientWindow::Total GradientWindow::finish(const Group& group) {
  auto sums = at::tensor(std::vector<double>{items_, samples_}, at::kDouble);
  group.all_reduce(sums).wait();
  const auto items = sums[0].item<double>(), samples = sums[1].item<double>();
  Total total{.items = items, .samples = samples};
  // Without any item all gradients are zero, and need no scale. The next unit is a power of two, so that scaling by it
  // is exact; it follows the size of this window, so that scaled losses keep the magnitude of losses.
  if (items > 0) total.gradient_scale = unit_ * group.size() / items;
  if (items > 0) unit_ = std::exp2(std::floor(std::log2(items / group.size())));
  if (const auto micro_batch = micro_batch_.lock()) micro_batch->ended_longer_window = num_micro_batches_ > 1;
  drop();
  return total;
}

void GradientWindow::drop() {
  items_of_micro_batch_.reset();
  items_ = samples_ = 0;
  num_micro_batches_ = 0;
  any_ = false;
}

void GradientWindow::load_state_dict(const Value& state) {
  const auto items = state.at("items").as<double>(), samples = state.at("samples").as<double>(),
             unit = state.at("unit").as<double>();
  any_ = state.at("any").as<bool>();
  items_ = items;
  samples_ = samples;
  unit_ = unit;
  // Items of a micro-batch are not saved: checkpoints are made between micro-batches.
  items_of_micro_batch_.reset();
}

}  // namespace accel

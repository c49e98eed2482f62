#include "reference/accelerator/gradient_window.hpp"

#include <ATen/ops/tensor.h>

#include <cmath>

#include "reference/core/errors.hpp"

namespace accel {

void GradientWindow::add(double items, double samples) {
  if (items_of_micro_batch_) {
    check_argument(*items_of_micro_batch_ == items, "backward: losses of one micro-batch are of {} and of {} items; expected the same number", *items_of_micro_batch_, items);
    return;
  }
  items_of_micro_batch_ = items;
  items_ += items;
  samples_ += samples;
  any_ = true;
}

GradientWindow::Total GradientWindow::finish(const Group& group, c10::Device device) {
  auto sums = at::tensor(std::vector<double>{items_, samples_}, at::TensorOptions(at::kDouble)).to(device);
  group.all_reduce(sums).wait();
  const auto items = sums[0].item<double>(), samples = sums[1].item<double>();
  Total total{.items = items, .samples = samples};
  // Without any item all gradients are zero, and stay.
  if (items > 0) total.gradient_scale = unit_ * group.size() / items;
  if (items > 0) unit_ = std::exp2(std::floor(std::log2(items / group.size())));
  drop();
  return total;
}

void GradientWindow::drop() {
  items_of_micro_batch_.reset();
  items_ = samples_ = 0;
  any_ = false;
}

void GradientWindow::load_state_dict(const Value& state) {
  const auto items = state.at("items").as<double>(), samples = state.at("samples").as<double>(), unit = state.at("unit").as<double>();
  any_ = state.at("any").as<bool>();
  items_ = items;
  samples_ = samples;
  unit_ = unit;
  items_of_micro_batch_.reset();
}

}  // namespace accel

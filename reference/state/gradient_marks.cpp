#include "reference/state/gradient_marks.hpp"

#include <algorithm>
#include <utility>

namespace accel {

GradientMarks::GradientMarks(std::vector<at::Tensor> parameters)
    : parameters_(std::move(parameters)),
      has_arrived_(parameters_.size(), false),
      taken_(parameters_.size(), WeakTensor(at::Tensor().getIntrusivePtr())) {}

std::vector<bool> GradientMarks::take_written() {
  std::vector<bool> written(parameters_.size(), false);
  for (std::size_t place = 0; place < parameters_.size(); ++place) {
    const auto& gradient = parameters_[place].grad();
    const bool is_new = gradient.defined() && gradient.unsafeGetTensorImpl() != taken_[place]._unsafe_get_target();
    written[place] = is_new && !has_arrived_[place];
    has_arrived_[place] = false;
    if (is_new) taken_[place] = WeakTensor(gradient.getIntrusivePtr());
  }
  return written;
}

void GradientMarks::continue_from(const GradientMarks& other) {
  for (std::size_t place = 0; place < parameters_.size(); ++place) {
    const auto found = std::ranges::find_if(
        other.parameters_, [&](const auto& parameter) { return parameter.is_same(parameters_[place]); });
    if (found == other.parameters_.end()) continue;
    const auto before = found - other.parameters_.begin();
    has_arrived_[place] = other.has_arrived_[before];
    taken_[place] = other.taken_[before];
  }
}

}  // namespace accel

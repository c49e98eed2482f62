#include "reference/data/collate.hpp"

#include <ATen/ATen.h>

#include <algorithm>

namespace accel::detail {
namespace {

// A single value applies to all tensors of a sample. An empty optional means that the tensor is not padded.
std::optional<double> value_of(std::size_t place, const PadCollateOptions& options) {
  return options.padding_values.size() == 1 ? options.padding_values.front() : options.padding_values[place];
}

std::vector<std::int64_t> lengths_of(const std::vector<at::Tensor*>& tensors, std::int64_t dim) {
  std::vector<std::int64_t> lengths;
  for (const auto* tensor : tensors) lengths.push_back(tensor->size(dim));
  return lengths;
}

// Padding on the left is for decoder-only models, which generate after the last token.
at::Tensor padded(const at::Tensor& tensor, std::int64_t length, double value, const PadCollateOptions& options) {
  const auto missing = length - tensor.size(options.dim);
  if (missing == 0) return tensor;
  auto sizes = tensor.sizes().vec();
  sizes[options.dim] = missing;
  const auto filling = at::full(sizes, value, tensor.options());
  return options.padding_side == "right" ? at::cat({tensor, filling}, options.dim)
                                         : at::cat({filling, tensor}, options.dim);
}

}  // namespace

at::Tensor stack_samples(const std::vector<at::Tensor>& samples) {
  for (const auto& sample : samples) {
    check_argument(sample.sizes() == samples.front().sizes(),
                   "default_collate: samples have shapes {} and {}; expected equal shapes; pass a collate function to "
                   "the DataLoader",
                   c10::str(samples.front().sizes()), c10::str(sample.sizes()));
  }
  return at::stack(samples);
}

// Source: torch/utils/data/_utils/collate.py, default_collate_fn: Python floats become float64 and ints int64,
// while at::tensor would use the default dtype.
at::Tensor tensor_of_numbers(const std::vector<double>& values) { return at::tensor(values, at::kDouble); }
at::Tensor tensor_of_numbers(const std::vector<std::int64_t>& values) { return at::tensor(values, at::kLong); }
at::Tensor tensor_of_flags(const std::vector<std::int64_t>& values) { return tensor_of_numbers(values).to(at::kBool); }

void check_options(const PadCollateOptions& options) {
  check_argument(options.dim >= 0, "PadCollate: dim {}; expected 0 or more", options.dim);
  check_argument(options.pad_to_multiple_of >= 1, "PadCollate: pad_to_multiple_of {}; expected 1 or more",
                 options.pad_to_multiple_of);
  check_argument(options.padding_side == "right" || options.padding_side == "left",
                 "PadCollate: padding_side '{}'; expected right or left", options.padding_side);
  check_argument(!options.padding_values.empty(),
                 "PadCollate: padding_values is empty; expected one value, or one per tensor of a sample");
}

// Pads in place: the pointers refer to the caller's copy of the samples. Records the lengths of the first padded
// tensor, from which PadCollateWithMask builds its mask.
Padding pad_tensors(const std::vector<std::vector<at::Tensor*>>& places, const PadCollateOptions& options) {
  const auto num_values = options.padding_values.size();
  check_argument(num_values == 1 || num_values == places.size(),
                 "PadCollate: {} padding_values for {} tensors of a sample; expected one value, or one per tensor",
                 num_values, places.size());
  Padding first;
  for (std::size_t place = 0; place < places.size(); ++place) {
    const auto& tensors = places[place];
    check_argument(
        tensors.size() == places.front().size(),
        "PadCollate: samples have different numbers of tensors: {} of {} have more than {}; expected equal numbers",
        tensors.size(), places.front().size(), place);
    const auto value = value_of(place, options);
    const bool has_dim = std::all_of(tensors.begin(), tensors.end(),
                                     [&](const at::Tensor* tensor) { return tensor->dim() > options.dim; });
    if (!value || !has_dim) continue;
    const auto lengths = lengths_of(tensors, options.dim);
    const auto multiple = options.pad_to_multiple_of;
    const auto length = (*std::max_element(lengths.begin(), lengths.end()) + multiple - 1) / multiple * multiple;
    for (auto* tensor : tensors) *tensor = padded(*tensor, length, *value, options);
    if (first.lengths.empty()) first = {lengths, length};
  }
  return first;
}

// int64 as the attention_mask of Hugging Face tokenizers.
at::Tensor mask_of(const Padding& padding, const PadCollateOptions& options) {
  check_argument(
      !padding.lengths.empty(),
      "PadCollateWithMask: the samples have no tensor that is padded along dimension {}; expected at least one",
      options.dim);
  const auto places = at::arange(padding.padded_length);
  const auto lengths = at::tensor(padding.lengths, at::kLong).unsqueeze(1);
  return (options.padding_side == "right" ? places < lengths : places >= padding.padded_length - lengths).to(at::kLong);
}

}  // namespace accel::detail

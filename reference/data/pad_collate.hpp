#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "reference/data/collate.hpp"

/// Samples of different lengths into a batch: their tensors are padded to the longest, then collated as default_collate
/// does.
///
///     accel::DataLoader loader(sentences, {.batch_size = 8}, accel::PadCollate({.padding_values = {0, -100}}));
///     accel::DataLoader masked(sentences, {.batch_size = 8}, accel::PadCollateWithMask({.pad_to_multiple_of = 8}));
///     for (auto& [batch, mask] : masked) { auto& [tokens, label] = batch; ... }
///
/// Each tensor of a sample is padded against the same tensor of the others, along one dimension; those that lack this
/// dimension, numbers and strings are left alone.
/// Thread rule: any thread.
/// Source: transformers/tokenization_utils_base.py, pad; torch/nn/utils/rnn.py, pad_sequence.
namespace accel {

struct PadCollateOptions {
  /// One for all tensors of a sample, or one for each in their order; a tensor without a value is not padded.
  std::vector<std::optional<double>> padding_values = {0};
  std::int64_t dim = 0;                 ///< of a sample's tensor
  std::int64_t pad_to_multiple_of = 1;  ///< lengths of a batch
  std::string padding_side = "right";   ///< or "left"
};

namespace detail {

/// Pads the tensors of one batch; [place in the sample][sample]. Samples' lengths and the batch's, of the first that is
/// padded.
struct Padding {
  std::vector<std::int64_t> lengths = {};
  std::int64_t padded_length = 0;
};
Padding pad_tensors(const std::vector<std::vector<at::Tensor*>>& places, const PadCollateOptions& options);
at::Tensor mask_of(const Padding& padding, const PadCollateOptions& options);
void check_options(const PadCollateOptions& options);

template <Tree Sample>
Padding pad_samples(std::vector<Sample>& samples, const PadCollateOptions& options) {
  std::vector<std::vector<at::Tensor*>> places;
  for (auto& sample : samples) {
    std::size_t place = 0;
    for_each_tensor(sample, [&](at::Tensor& tensor) {
      if (place == places.size()) places.emplace_back();
      places[place++].push_back(&tensor);
    });
  }
  return pad_tensors(places, options);
}

}  // namespace detail

class PadCollate {
 public:
  /// Throws ArgumentError for a negative dim, a multiple below 1, or a side that is neither "right" nor "left".
  explicit PadCollate(PadCollateOptions options = {}) : options_(std::move(options)) {
    detail::check_options(options_);
  }

  /// Throws ArgumentError if samples differ in their number of tensors, or as default_collate.
  template <Tree Sample>
  auto operator()(std::vector<Sample> samples) const {
    detail::pad_samples(samples, options_);
    return default_collate(samples);
  }

 private:
  PadCollateOptions options_;
};

/// As PadCollate, beside a mask of shape (samples, length), int64: 1 where the first padded tensor is data, 0 where it
/// is padding. Its sum over dimension 1 is the samples' lengths.
class PadCollateWithMask {
 public:
  explicit PadCollateWithMask(PadCollateOptions options = {}) : options_(std::move(options)) {
    detail::check_options(options_);
  }

  template <Tree Sample>
  auto operator()(std::vector<Sample> samples) const {
    const auto padding = detail::pad_samples(samples, options_);
    return std::pair(default_collate(samples), detail::mask_of(padding, options_));
  }

 private:
  PadCollateOptions options_;
};

}  // namespace accel

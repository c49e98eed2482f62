#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "reference/tree/tree.hpp"

/// Collation of samples into a batch. Tensors are stacked along a new dimension 0, numbers become a tensor (int64 for
/// integers, float64 for floats, bool for bool), strings and user-defined leaves become a vector. Containers keep their
/// structure.
///
/// Throws ArgumentError if corresponding tensors differ in shape or sequences in length.
/// Source: torch/utils/data/_utils/collate.py, default_collate.
namespace accel {

namespace detail {
at::Tensor stack_samples(const std::vector<at::Tensor>& samples);
at::Tensor tensor_of_numbers(const std::vector<double>& values);
at::Tensor tensor_of_numbers(const std::vector<std::int64_t>& values);
at::Tensor tensor_of_flags(const std::vector<std::int64_t>& values);
}  // namespace detail

template <Tree Sample>
auto default_collate(const std::vector<Sample>& samples);

namespace detail {

template <typename Item>
using Collated = decltype(default_collate(std::declval<std::vector<Item>>()));

/// Collates one member of every sample.
template <typename Sample, typename Get>
auto collate_parts(const std::vector<Sample>& samples, Get&& get) {
  std::vector<std::remove_cvref_t<decltype(get(samples.front()))>> items;
  for (const auto& sample : samples) items.push_back(get(sample));
  return default_collate(items);
}

template <TupleTree Sample>
auto collate_tuples(const std::vector<Sample>& samples) {
  return [&]<std::size_t... I>(std::index_sequence<I...>) {
    return std::tuple(collate_parts(samples, [](const Sample& sample) { return std::get<I>(sample); })...);
  }(std::make_index_sequence<std::tuple_size_v<Sample>>{});
}

template <MapTree Sample>
auto collate_maps(const std::vector<Sample>& samples) {
  for (const auto& sample : samples) {
    check_argument(sample.size() == samples.front().size(),
                   "default_collate: samples have {} and {} keys; expected equal keys", samples.front().size(),
                   sample.size());
  }
  std::map<std::string, Collated<typename Sample::mapped_type>> batch;
  for (const auto& [key, unused] : samples.front()) {
    batch.emplace(key, collate_parts(samples, [&key = key](const Sample& sample) {
                    check_argument(sample.contains(key),
                                   "default_collate: the key '{}' is missing in some samples; expected equal keys",
                                   key);
                    return sample.at(key);
                  }));
  }
  return batch;
}

template <SequenceTree Sample>
auto collate_sequences(const std::vector<Sample>& samples) {
  for (const auto& sample : samples) {
    check_argument(sample.size() == samples.front().size(),
                   "default_collate: sequences of {} and {} items; expected equal lengths", samples.front().size(),
                   sample.size());
  }
  std::vector<Collated<typename Sample::value_type>> batch;
  for (std::size_t place = 0; place < samples.front().size(); ++place)
    batch.push_back(
        collate_parts(samples, [&](const Sample& sample) -> typename Sample::value_type { return sample[place]; }));
  return batch;
}

template <OptionalTree Sample>
auto collate_optionals(const std::vector<Sample>& samples) {
  for (const auto& sample : samples) {
    check_argument(sample.has_value() == samples.front().has_value(),
                   "default_collate: an optional member has a value in some samples only; expected one in all or none");
  }
  using Batch = std::optional<Collated<typename Sample::value_type>>;
  return samples.front() ? Batch(collate_parts(samples, [](const Sample& sample) { return *sample; })) : Batch();
}

/// A struct keeps its type, so each member must collate to its own type: a tensor or a container of tensors.
template <StructTree Sample>
Sample collate_structs(const std::vector<Sample>& samples) {
  Sample batch = samples.front();
  const auto collate_member = [&](auto member) {
    using Item = std::remove_cvref_t<decltype(batch.*member)>;
    static_assert(std::is_same_v<Collated<Item>, Item>,
                  "a member of this struct has another type in a batch (a number becomes a tensor); pass a collate "
                  "function to the DataLoader");
    batch.*member = collate_parts(samples, [&](const Sample& sample) { return sample.*member; });
  };
  std::apply([&](auto... members) { (collate_member(members), ...); }, tree_members<Sample>);
  return batch;
}

}  // namespace detail

template <Tree Sample>
auto default_collate(const std::vector<Sample>& samples) {
  check_argument(!samples.empty(), "default_collate: no samples; expected at least one");
  if constexpr (TensorLeaf<Sample>) {
    return detail::stack_samples(samples);
  } else if constexpr (std::is_same_v<Sample, bool>) {
    return detail::tensor_of_flags({samples.begin(), samples.end()});
  } else if constexpr (std::is_floating_point_v<Sample>) {
    return detail::tensor_of_numbers(std::vector<double>(samples.begin(), samples.end()));
  } else if constexpr (NumberLeaf<Sample>) {
    return detail::tensor_of_numbers(std::vector<std::int64_t>(samples.begin(), samples.end()));
  } else if constexpr (StringLeaf<Sample> || ConvertedLeaf<Sample>) {
    return samples;
  } else if constexpr (TupleTree<Sample>) {
    return detail::collate_tuples(samples);
  } else if constexpr (MapTree<Sample>) {
    return detail::collate_maps(samples);
  } else if constexpr (OptionalTree<Sample>) {
    return detail::collate_optionals(samples);
  } else if constexpr (SequenceTree<Sample>) {
    return detail::collate_sequences(samples);
  } else {
    return detail::collate_structs(samples);
  }
}

// Collation of samples of different lengths: tensors are padded to the longest one, then collated as by
// default_collate.
//
//     accel::DataLoader loader(sentences, {.batch_size = 8}, accel::PadCollate({.padding_values = {0, -100}}));
//     accel::DataLoader masked(sentences, {.batch_size = 8}, accel::PadCollateWithMask({.pad_to_multiple_of = 8}));
//     for (auto& [batch, mask] : masked) { auto& [tokens, label] = batch; ... }
//
// Each tensor of a sample is padded to the length of the corresponding tensors of the other samples, along one
// dimension. Tensors that lack this dimension, numbers and strings are unchanged.
// Thread rule: any thread.
// Source: transformers/tokenization_utils_base.py, pad; torch/nn/utils/rnn.py, pad_sequence.

struct PadCollateOptions {
  /// One value for all tensors of a sample, or one per tensor in order. A tensor whose value is nullopt is not padded.
  std::vector<std::optional<double>> padding_values = {0};
  std::int64_t dim = 0;                 ///< dimension of a sample's tensor, without the batch dimension
  std::int64_t pad_to_multiple_of = 1;  ///< the padded length is rounded up to a multiple of this
  std::string padding_side = "right";   ///< or "left"
};

namespace detail {

/// Lengths of the first padded tensor: of each sample, and after padding. The functions below take the tensors of one
/// batch as [tensor of a sample][sample].
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

  /// Throws ArgumentError if samples have different numbers of tensors, and as default_collate does.
  template <Tree Sample>
  auto operator()(std::vector<Sample> samples) const {
    detail::pad_samples(samples, options_);
    return default_collate(samples);
  }

 private:
  PadCollateOptions options_;
};

/// Like PadCollate, but returns a pair of the batch and an int64 mask of shape (samples, length), which is 1 for data
/// of the first padded tensor and 0 for padding. The sum of the mask over dimension 1 gives the lengths of the samples.
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

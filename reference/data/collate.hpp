#pragma once

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "reference/core/tree.hpp"

/// Samples into a batch: tensors are stacked on a new dimension 0, numbers become a tensor (integers int64, floats
/// float64, bool bool), strings and leaves of the user's own a vector of them; containers keep their shape.
///
/// Throws ArgumentError if tensors of one place differ in shape, or sequences in length.
/// Source: torch/utils/data/_utils/collate.py, default_collate.
namespace accel {

namespace detail {
at::Tensor stack_samples(const std::vector<at::Tensor>& samples);
at::Tensor tensor_of_numbers(const std::vector<double>& values);
at::Tensor tensor_of_numbers(const std::vector<std::int64_t>& values);
at::Tensor tensor_of_flags(const std::vector<std::int64_t>& values);
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
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      const auto column = [&]<std::size_t K>(std::integral_constant<std::size_t, K>) {
        std::vector<std::remove_cvref_t<std::tuple_element_t<K, Sample>>> items;
        for (const auto& sample : samples) items.push_back(std::get<K>(sample));
        return default_collate(items);
      };
      return std::tuple(column(std::integral_constant<std::size_t, I>{})...);
    }(std::make_index_sequence<std::tuple_size_v<Sample>>{});
  } else if constexpr (MapTree<Sample>) {
    using Item = typename Sample::mapped_type;
    std::map<std::string, decltype(default_collate(std::declval<std::vector<Item>>()))> batch;
    for (const auto& sample : samples) {
      check_argument(sample.size() == samples.front().size(),
                     "default_collate: samples of {} and {} keys; expected one set of keys", samples.front().size(),
                     sample.size());
    }
    for (const auto& [key, unused] : samples.front()) {
      std::vector<Item> items;
      for (const auto& sample : samples) {
        check_argument(sample.contains(key), "default_collate: samples differ in their keys ('{}')", key);
        items.push_back(sample.at(key));
      }
      batch.emplace(key, default_collate(items));
    }
    return batch;
  } else if constexpr (SequenceTree<Sample>) {
    using Item = typename Sample::value_type;
    std::vector<decltype(default_collate(std::declval<std::vector<Item>>()))> batch;
    for (const auto& sample : samples) {
      check_argument(sample.size() == samples.front().size(),
                     "default_collate: sequences of {} and {} items; expected one length", samples.front().size(),
                     sample.size());
    }
    for (std::size_t place = 0; place < samples.front().size(); ++place) {
      std::vector<Item> items;
      for (const auto& sample : samples) items.push_back(sample[place]);
      batch.push_back(default_collate(items));
    }
    return batch;
  } else {
    static_assert(StructTree<Sample>);
    // A struct keeps its type, so each of its members must collate into itself: tensors, and containers of them.
    Sample batch = samples.front();
    const auto collate_member = [&](auto member) {
      using Item = std::remove_cvref_t<decltype(batch.*member)>;
      static_assert(std::is_same_v<decltype(default_collate(std::declval<std::vector<Item>>())), Item>,
                    "a member of this struct becomes another type in a batch (a number becomes a tensor): give the "
                    "DataLoader a collate function");
      std::vector<Item> items;
      for (const auto& sample : samples) items.push_back(sample.*member);
      batch.*member = default_collate(items);
    };
    std::apply([&](auto... members) { (collate_member(members), ...); }, tree_members<Sample>);
    return batch;
  }
}

}  // namespace accel

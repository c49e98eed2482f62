#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <vector>

#include "reference/tree/tree.hpp"

/// Operations on the rows of a tree, one per sample: dimension 0 of a tensor, or the entries of a tensor-free vector.
///
///     auto both = accel::concatenate(std::vector{first, second});
///     auto mine = accel::slice_rows(both, {.begin = 4, .end = 8});
///
/// Thread rule: plain functions on values.
/// Source: accelerate/utils/operations.py, concatenate and slice_tensors.
namespace accel {

namespace detail {

template <typename T>
struct has_rows : std::bool_constant<TensorLeaf<T> || SampleList<T>> {};

}  // namespace detail

/// A tree without individual numbers and strings: every leaf is a tensor or a vector with one entry per sample.
template <typename T>
concept RowTree = Tree<T> && detail::every_leaf<detail::has_rows, T>();

struct RowRange {
  std::int64_t begin = 0, end = 0;  ///< `end` is excluded
  [[nodiscard]] std::int64_t size() const { return end - begin; }
};

namespace detail {

at::Tensor concatenate_tensors(const std::vector<at::Tensor>& tensors);
at::Tensor slice_tensor(const at::Tensor& tensor, RowRange rows);
void check_tensor_has_rows(const at::Tensor& tensor);

/// Calls `f` with every tensor and every SampleList and skips other leaves.
template <Tree T, typename F>
void for_each_rows(T&& tree, F&& f) {
  if constexpr (TensorLeaf<T> || SampleList<T>) {
    f(tree);
  } else if constexpr (SequenceTree<T>) {
    for (auto& item : tree) for_each_rows(item, f);
  } else if constexpr (MapTree<T>) {
    for (auto& [key, item] : tree) for_each_rows(item, f);
  } else if constexpr (OptionalTree<T>) {
    if (tree) for_each_rows(*tree, f);
  } else if constexpr (TupleTree<T>) {
    std::apply([&](auto&... items) { (for_each_rows(items, f), ...); }, tree);
  } else if constexpr (StructTree<T>) {
    std::apply([&](auto... members) { (for_each_rows(tree.*members, f), ...); }, tree_members<std::remove_cvref_t<T>>);
  }
}

template <Tree T>
T concatenate_places(const std::vector<const T*>& parts);

// Concatenates the same member of every part.
template <typename T, typename Get>
auto concatenate_at(const std::vector<const T*>& parts, Get&& get) {
  using Item = std::remove_cvref_t<decltype(get(*parts.front()))>;
  std::vector<const Item*> items;
  for (const auto* part : parts) items.push_back(&get(*part));
  return concatenate_places(items);
}

template <typename T>
void check_equal_lengths(const std::vector<const T*>& parts) {
  for (const auto* part : parts) {
    check_argument(part->size() == parts.front()->size(),
                   "concatenate: sequences of {} and {} items; expected equal lengths", parts.front()->size(),
                   part->size());
  }
}

template <typename T>
void check_equal_keys(const std::vector<const T*>& parts) {
  for (const auto* part : parts) {
    const bool same_keys = std::equal(part->begin(), part->end(), parts.front()->begin(), parts.front()->end(),
                                      [](const auto& a, const auto& b) { return a.first == b.first; });
    check_argument(same_keys, "concatenate: maps with different keys; expected equal keys");
  }
}

template <typename T>
void check_equal_presence(const std::vector<const T*>& parts) {
  for (const auto* part : parts) {
    check_argument(part->has_value() == parts.front()->has_value(),
                   "concatenate: an optional member has a value in some parts only; expected one in all or none");
  }
}

template <Tree T>
T concatenate_places(const std::vector<const T*>& parts) {
  T result = *parts.front();
  if constexpr (TensorLeaf<T>) {
    std::vector<at::Tensor> tensors;
    for (const auto* part : parts) tensors.push_back(*part);
    result = concatenate_tensors(tensors);
  } else if constexpr (SampleList<T>) {
    for (std::size_t part = 1; part < parts.size(); ++part)
      result.insert(result.end(), parts[part]->begin(), parts[part]->end());
  } else if constexpr (SequenceTree<T>) {
    check_equal_lengths(parts);
    for (std::size_t item = 0; item < result.size(); ++item) {
      result[item] = concatenate_at(parts, [&](const T& part) -> const auto& { return part[item]; });
    }
  } else if constexpr (MapTree<T>) {
    check_equal_keys(parts);
    for (auto& [key, item] : result)
      item = concatenate_at(parts, [&](const T& part) -> const auto& { return part.at(key); });
  } else if constexpr (OptionalTree<T>) {
    check_equal_presence(parts);
    if (result) result = concatenate_at(parts, [](const T& part) -> const auto& { return *part; });
  } else if constexpr (TupleTree<T>) {
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      ((std::get<I>(result) = concatenate_at(parts, [](const T& part) -> const auto& { return std::get<I>(part); })),
       ...);
    }(std::make_index_sequence<std::tuple_size_v<T>>());
  } else if constexpr (StructTree<T>) {
    std::apply(
        [&](auto... members) {
          ((result.*members = concatenate_at(parts, [&](const T& part) -> const auto& { return part.*members; })), ...);
        },
        tree_members<T>);
  } else if constexpr (ConvertedLeaf<T>) {
    check_argument(parts.size() == 1,
                   "concatenate: a leaf of a user-defined type has no rows; use a vector with one entry per sample");
  } else {
    for (const auto* part : parts) {
      check_argument(*part == result,
                     "concatenate: a number or string differs between the parts and has no rows; use a vector with one "
                     "entry per sample");
    }
  }
  return result;
}

}  // namespace detail

/// Concatenates the rows of all parts in order. Numbers and strings, which have no rows, must be equal in all parts.
/// Throws ArgumentError if there are no parts or if their structures or shapes do not match.
template <Tree T>
T concatenate(const std::vector<T>& parts) {
  check_argument(!parts.empty(), "concatenate: no parts; expected at least one");
  std::vector<const T*> places;
  for (const auto& part : parts) places.push_back(&part);
  return detail::concatenate_places(places);
}

/// Returns a range of rows of every tensor (as a view) and list. Throws ArgumentError if one has too few rows.
template <Tree T>
T slice_rows(const T& tree, RowRange rows) {
  T result = tree;
  detail::for_each_rows(result, [&](auto& leaf) {
    if constexpr (TensorLeaf<decltype(leaf)>) {
      leaf = detail::slice_tensor(leaf, rows);
    } else {
      check_argument(
          rows.end <= static_cast<std::int64_t>(leaf.size()),
          "slice_rows: rows {} to {} are out of range for a list with {} entries; expected an end of at most {}",
          rows.begin, rows.end, leaf.size(), leaf.size());
      leaf = std::remove_cvref_t<decltype(leaf)>(leaf.begin() + rows.begin, leaf.begin() + rows.end);
    }
  });
  return result;
}

/// Returns `tree`, if any, extended to `num_rows` rows with the rows of `start`, which are repeated as often as
/// necessary.
template <Tree T>
T pad_rows(std::optional<T> tree, const T& start, std::int64_t num_rows);

/// Returns the common number of rows of all tensors and lists of the tree, or nullopt if it has neither.
/// Throws ArgumentError if the numbers differ or if a tensor has no dimensions.
template <Tree T>
std::optional<std::int64_t> num_rows(const T& tree) {
  std::optional<std::int64_t> rows;
  detail::for_each_rows(tree, [&](const auto& leaf) {
    std::int64_t of_leaf = 0;
    if constexpr (TensorLeaf<decltype(leaf)>) {
      detail::check_tensor_has_rows(leaf);
      of_leaf = leaf.size(0);
    } else {
      of_leaf = static_cast<std::int64_t>(leaf.size());
    }
    check_argument(rows.value_or(of_leaf) == of_leaf,
                   "a batch has {} rows in one leaf and {} in another; expected one row per sample in every leaf",
                   rows.value_or(of_leaf), of_leaf);
    rows = of_leaf;
  });
  return rows;
}

template <Tree T>
T pad_rows(std::optional<T> tree, const T& start, std::int64_t num_rows) {
  auto rows = tree ? accel::num_rows(*tree).value_or(num_rows) : 0;
  if (tree && rows >= num_rows) return *std::move(tree);
  std::vector<T> parts;
  if (tree) parts.push_back(*std::move(tree));
  const auto available = accel::num_rows(start).value_or(0);
  check_argument(available > 0, "filled_up: `start` has no rows; expected at least one");
  for (std::int64_t taken = 0; rows < num_rows; rows += taken) {
    taken = std::min(num_rows - rows, available);
    parts.push_back(slice_rows(start, {.end = taken}));
  }
  return concatenate(parts);
}

}  // namespace accel

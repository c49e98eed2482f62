#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <concepts>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "reference/core/errors.hpp"

/// Trees: the containers that a batch or a model output may consist of. Leaves are tensors, numbers and strings.
///
/// A tree is a tensor, a number, a string, a std::pair, tuple, array, vector, optional or map (with string keys) of
/// trees, or a user-defined struct that is registered with one line:
///
///     struct Batch { at::Tensor image; std::optional<at::Tensor> mask; };
///     template <> inline constexpr auto accel::tree_members<Batch> = std::tuple(&Batch::image, &Batch::mask);
///
/// Any other user-defined type becomes a leaf if it defines a conversion to a tree and back:
///
///     template <> struct accel::tree_conversion<Date> {
///       static std::string to_tree(const Date& date) { return date.text(); }
///       static Date from_tree(const std::string& text) { return Date(text); }
///     };
///
///     auto on_cpu = accel::map_tensors(batch, [](const at::Tensor& t) { return t.cpu(); });
///
/// Thread rule: plain functions on values.
/// Source: accelerate/utils/operations.py, recursively_apply.
namespace accel {

/// Specialize with a std::tuple of member pointers to make a struct a tree. See the example above.
template <typename T>
inline constexpr auto tree_members = nullptr;

/// Specialize with `static auto to_tree(const T&)` and `static T from_tree(const Tree&)` to make a type a leaf. See the
/// example above.
template <typename T>
struct tree_conversion;

namespace detail {

template <typename T>
struct is_vector : std::false_type {};
template <typename T, typename A>
struct is_vector<std::vector<T, A>> : std::true_type {};

template <typename T>
struct is_map : std::false_type {};
template <typename T, typename... R>
struct is_map<std::map<std::string, T, R...>> : std::true_type {};

template <typename T>
struct is_array : std::false_type {};
template <typename T, std::size_t N>
struct is_array<std::array<T, N>> : std::true_type {};

template <typename T>
struct is_optional : std::false_type {};
template <typename T>
struct is_optional<std::optional<T>> : std::true_type {};

template <typename T>
struct is_tuple : std::false_type {};
template <typename... T>
struct is_tuple<std::tuple<T...>> : std::true_type {};
template <typename A, typename B>
struct is_tuple<std::pair<A, B>> : std::true_type {};

}  // namespace detail

template <typename T>
concept TensorLeaf = std::same_as<std::remove_cvref_t<T>, at::Tensor>;
template <typename T>
concept NumberLeaf = std::is_arithmetic_v<std::remove_cvref_t<T>>;
template <typename T>
concept StringLeaf = std::same_as<std::remove_cvref_t<T>, std::string>;
template <typename T>
concept SequenceTree =
    detail::is_vector<std::remove_cvref_t<T>>::value || detail::is_array<std::remove_cvref_t<T>>::value;
template <typename T>
concept MapTree = detail::is_map<std::remove_cvref_t<T>>::value;
template <typename T>
concept OptionalTree = detail::is_optional<std::remove_cvref_t<T>>::value;
template <typename T>
concept TupleTree = detail::is_tuple<std::remove_cvref_t<T>>::value;
template <typename T>
concept StructTree = !std::same_as<std::remove_cvref_t<decltype(tree_members<std::remove_cvref_t<T>>)>, std::nullptr_t>;
/// A leaf that `tree_conversion` converts.
template <typename T>
concept ConvertedLeaf =
    requires(const std::remove_cvref_t<T>& value) { tree_conversion<std::remove_cvref_t<T>>::to_tree(value); };
template <typename T>
concept Tree = TensorLeaf<T> || NumberLeaf<T> || StringLeaf<T> || SequenceTree<T> || MapTree<T> || OptionalTree<T> ||
               TupleTree<T> || StructTree<T> || ConvertedLeaf<T>;

namespace detail {

template <template <typename> typename Accepted, typename T>
constexpr bool every_leaf();

template <template <typename> typename Accepted, typename Class, typename Member>
constexpr bool every_leaf_of_member(Member Class::*) {
  return every_leaf<Accepted, Member>();
}

/// True if `Accepted<Type>::value` holds for every leaf type of T. A container that is accepted itself counts as a
/// leaf.
template <template <typename> typename Accepted, typename T>
constexpr bool every_leaf() {
  using U = std::remove_cvref_t<T>;
  if constexpr (Accepted<U>::value) {
    return true;
  } else if constexpr (SequenceTree<U> || OptionalTree<U>) {
    return every_leaf<Accepted, typename U::value_type>();
  } else if constexpr (MapTree<U>) {
    return every_leaf<Accepted, typename U::mapped_type>();
  } else if constexpr (TupleTree<U>) {
    return []<std::size_t... I>(std::index_sequence<I...>) {
      return (every_leaf<Accepted, std::tuple_element_t<I, U>>() && ...);
    }(std::make_index_sequence<std::tuple_size_v<U>>());
  } else if constexpr (StructTree<U>) {
    return std::apply([](auto... members) { return (every_leaf_of_member<Accepted>(members) && ...); },
                      tree_members<U>);
  } else {
    return false;
  }
}

template <typename T>
struct is_tensor : std::bool_constant<TensorLeaf<T>> {};
template <typename T>
struct is_other_leaf : std::bool_constant<!TensorLeaf<T> && !SequenceTree<T> && !MapTree<T> && !OptionalTree<T> &&
                                          !TupleTree<T> && !StructTree<T>> {};

template <typename T>
constexpr bool contains_tensor() {
  return !every_leaf<is_other_leaf, T>();
}

/// A tree whose leaves are all tensors.
template <typename T>
concept TensorTree = Tree<T> && every_leaf<is_tensor, T>();

}  // namespace detail

/// A vector that contains no tensors: it has one entry per sample, as a tensor has one row per sample.
template <typename T>
concept SampleList = detail::is_vector<std::remove_cvref_t<T>>::value && !detail::contains_tensor<T>();

/// Calls `f(leaf)` for every leaf in the order of the members, and for a map in the order of its keys.
template <Tree T, typename F>
void for_each_leaf(T&& tree, F&& f) {
  if constexpr (SequenceTree<T>) {
    for (auto& item : tree) for_each_leaf(item, f);
  } else if constexpr (MapTree<T>) {
    for (auto& [key, item] : tree) for_each_leaf(item, f);
  } else if constexpr (OptionalTree<T>) {
    if (tree) for_each_leaf(*tree, f);
  } else if constexpr (TupleTree<T>) {
    std::apply([&](auto&... items) { (for_each_leaf(items, f), ...); }, tree);
  } else if constexpr (StructTree<T>) {
    std::apply([&](auto... members) { (for_each_leaf(tree.*members, f), ...); }, tree_members<std::remove_cvref_t<T>>);
  } else {
    f(tree);
  }
}

/// Calls `f(tensor)` for every tensor leaf and skips other leaves.
template <Tree T, typename F>
void for_each_tensor(T&& tree, F&& f) {
  if constexpr (detail::contains_tensor<T>()) {
    for_each_leaf(tree, [&](auto& leaf) {
      if constexpr (TensorLeaf<decltype(leaf)>) f(leaf);
    });
  }
}

/// Returns a tree of the same type in which every tensor is replaced by `f(tensor)`. Other leaves are copied.
template <Tree T, typename F>
std::remove_cvref_t<T> map_tensors(const T& tree, F&& f) {
  auto result = tree;
  for_each_tensor(result, [&](at::Tensor& tensor) { tensor = f(std::as_const(tensor)); });
  return result;
}

/// Returns the tensors of a tree in the order of `for_each_leaf`.
template <Tree T>
std::vector<at::Tensor> tensors_of(const T& tree) {
  std::vector<at::Tensor> tensors;
  for_each_tensor(tree, [&](const at::Tensor& tensor) { tensors.push_back(tensor); });
  return tensors;
}

/// Returns the tensors of all arguments that are trees.
template <typename... Args>
std::vector<at::Tensor> tensors_among(const Args&... args) {
  std::vector<at::Tensor> tensors;
  const auto add = [&]<typename Arg>(const Arg& arg) {
    if constexpr (Tree<Arg>) for_each_tensor(arg, [&](const at::Tensor& tensor) { tensors.push_back(tensor); });
  };
  (add(args), ...);
  return tensors;
}

/// Replaces the tensors of a tree by `tensors`, which are in the order of `tensors_of`.
template <typename T>
  requires Tree<T>
void replace_tensors(T& tree, const std::vector<at::Tensor>& tensors) {
  auto next = tensors.begin();
  for_each_tensor(tree, [&](at::Tensor& tensor) { tensor = *next++; });
}

/// Returns the size of dimension 0 of the first tensor leaf.
/// Throws ArgumentError if there is none or it has no dimension.
/// Source: accelerate/utils/operations.py, find_batch_size.
template <Tree T>
std::int64_t find_batch_size(const T& tree) {
  const auto tensors = tensors_of(tree);
  check_argument(!tensors.empty(), "find_batch_size: the batch has no tensor; expected at least one");
  check_argument(tensors.front().dim() > 0,
                 "find_batch_size: the first tensor has no dimensions; expected (batch, ...)");
  return tensors.front().size(0);
}

}  // namespace accel

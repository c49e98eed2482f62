#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "reference/tree/tree.hpp"

/// Serialization of trees, for transfer between ranks that run the same program.
///
///     std::string bytes = accel::pack(tree);
///     auto copy = accel::unpack<Batch>(bytes);
///
/// The bytes do not contain the type: sender and receiver must use the same type. Unpacked tensors are on the CPU,
/// contiguous and without gradient.
/// Thread rule: plain functions on values.
namespace accel {

enum class TensorBytes {
  kWhole,      ///< shape, dtype and elements
  kShapeOnly,  ///< shape and dtype; `unpack` returns uninitialized elements
};

template <Tree T>
std::string pack(const T& tree, TensorBytes tensors = TensorBytes::kWhole);
template <Tree T>
T unpack(std::string_view bytes, TensorBytes tensors = TensorBytes::kWhole);

namespace detail {

class ByteWriter {
 public:
  explicit ByteWriter(TensorBytes tensors) : tensors_(tensors) {}
  void raw(const void* data, std::size_t size) { bytes_.append(static_cast<const char*>(data), size); }
  void count(std::size_t value) { raw(&value, sizeof value); }
  void text(std::string_view value);
  void tensor(const at::Tensor& tensor);
  std::string take() { return std::move(bytes_); }

 private:
  TensorBytes tensors_;
  std::string bytes_;
};

class ByteReader {
 public:
  ByteReader(std::string_view bytes, TensorBytes tensors) : bytes_(bytes), tensors_(tensors) {}
  void raw(void* data, std::size_t size);
  /// Reads a number of items, each of which needs at least one byte.
  std::size_t count();
  std::string text();
  at::Tensor tensor();
  [[nodiscard]] bool at_end() const { return bytes_.empty(); }

 private:
  std::string_view bytes_;
  TensorBytes tensors_;
};

template <Tree T>
void write_tree(ByteWriter& writer, const T& tree) {
  if constexpr (TensorLeaf<T>) {
    writer.tensor(tree);
  } else if constexpr (NumberLeaf<T>) {
    writer.raw(&tree, sizeof tree);
  } else if constexpr (StringLeaf<T>) {
    writer.text(tree);
  } else if constexpr (SequenceTree<T>) {
    writer.count(tree.size());
    for (const auto& item : tree) write_tree<typename T::value_type>(writer, item);
  } else if constexpr (MapTree<T>) {
    writer.count(tree.size());
    for (const auto& [key, item] : tree) {
      writer.text(key);
      write_tree(writer, item);
    }
  } else if constexpr (OptionalTree<T>) {
    writer.count(tree ? 1 : 0);
    if (tree) write_tree(writer, *tree);
  } else if constexpr (TupleTree<T>) {
    std::apply([&](const auto&... items) { (write_tree(writer, items), ...); }, tree);
  } else if constexpr (ConvertedLeaf<T>) {
    writer.text(pack(tree_conversion<T>::to_tree(tree), TensorBytes::kWhole));
  } else {
    std::apply([&](auto... members) { (write_tree(writer, tree.*members), ...); }, tree_members<T>);
  }
}

template <Tree T>
void read_tree(ByteReader& reader, T& tree) {
  if constexpr (TensorLeaf<T>) {
    tree = reader.tensor();
  } else if constexpr (NumberLeaf<T>) {
    reader.raw(&tree, sizeof tree);
  } else if constexpr (StringLeaf<T>) {
    tree = reader.text();
  } else if constexpr (detail::is_vector<T>::value) {
    tree.clear();
    for (auto left = reader.count(); left > 0; --left) {
      typename T::value_type item{};
      read_tree(reader, item);
      tree.push_back(std::move(item));
    }
  } else if constexpr (SequenceTree<T>) {
    check_argument(reader.count() == tree.size(), "unpack: found an array of another size");
    for (auto& item : tree) read_tree(reader, item);
  } else if constexpr (MapTree<T>) {
    tree.clear();
    for (auto left = reader.count(); left > 0; --left) {
      auto key = reader.text();
      read_tree(reader, tree[std::move(key)]);
    }
  } else if constexpr (OptionalTree<T>) {
    tree.reset();
    if (reader.count() > 0) read_tree(reader, tree.emplace());
  } else if constexpr (TupleTree<T>) {
    std::apply([&](auto&... items) { (read_tree(reader, items), ...); }, tree);
  } else if constexpr (ConvertedLeaf<T>) {
    using Converted = std::remove_cvref_t<decltype(tree_conversion<T>::to_tree(tree))>;
    tree = tree_conversion<T>::from_tree(unpack<Converted>(reader.text(), TensorBytes::kWhole));
  } else {
    std::apply([&](auto... members) { (read_tree(reader, tree.*members), ...); }, tree_members<T>);
  }
}

}  // namespace detail

template <Tree T>
std::string pack(const T& tree, TensorBytes tensors) {
  detail::ByteWriter writer(tensors);
  detail::write_tree(writer, tree);
  return writer.take();
}

/// Restores a tree. `T` must be default constructible. Throws ArgumentError if the bytes are not those of a T packed
/// with the same `tensors` mode. Does not detect changed element values.
template <Tree T>
T unpack(std::string_view bytes, TensorBytes tensors) {
  detail::ByteReader reader(bytes, tensors);
  T tree{};
  detail::read_tree(reader, tree);
  check_argument(reader.at_end(),
                 "unpack: the data have bytes after the end of the tree; expected the result of one pack()");
  return tree;
}

}  // namespace accel

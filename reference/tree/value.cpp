#include "reference/tree/value.hpp"

#include <array>
#include <cstring>

#include "reference/tree/tree_bytes.hpp"

namespace accel {
namespace {

using detail::ByteReader;
using detail::ByteWriter;

// Compares bytes rather than values: a checkpoint test must distinguish -0.0 from 0.0 and must find NaN equal to
// itself.
bool equal_bytes(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  const auto left = a.to(at::kCPU).contiguous(), right = b.to(at::kCPU).contiguous();
  return left.nbytes() == 0 || std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0;
}

}  // namespace

const Value& Value::at(const std::string& key) const {
  const auto& dict = as<Dict>();
  const auto entry = dict.find(key);
  check_argument(entry != dict.end(), "the dict has no key '{}' among its {} keys; test with contains() first", key,
                 dict.size());
  return entry->second;
}

bool Value::contains(const std::string& key) const { return is<Dict>() && std::get<Dict>(content_).contains(key); }

// In the order of the alternatives of `content_`.
std::string Value::type_name() const {
  constexpr std::array kNames{"null", "bool", "int", "float", "string", "tensor", "list", "dict"};
  return kNames.at(content_.index());
}

void Value::throw_type(const std::string& expected) const {
  throw ArgumentError(fmt::format("expected a value of type {}, got {}", expected, type_name()));
}

bool operator==(const Value& a, const Value& b) {
  if (a.is<at::Tensor>() && b.is<at::Tensor>()) return equal_bytes(a.as<at::Tensor>(), b.as<at::Tensor>());
  if (a.content_.index() != b.content_.index()) return false;
  return std::visit(
      [&]<typename T>(const T& content) {
        if constexpr (std::same_as<T, at::Tensor>) {
          return true;  // compared above
        } else {
          return content == std::get<T>(b.content_);
        }
      },
      a.content_);
}

namespace {

// Lists and dicts of values are trees, so the tree reader handles their content.
template <typename T>
Value read_content(ByteReader& reader) {
  if constexpr (std::same_as<T, std::monostate>) {
    return {};
  } else {
    T content{};
    detail::read_tree(reader, content);
    return content;
  }
}

// Maps the stored index back to a type: a table with one reader per alternative of the variant. The null pointer
// only carries the list of types.
template <typename... T>
Value read_alternative(std::size_t index, ByteReader& reader, const std::variant<T...>*) {
  constexpr std::array<Value (*)(ByteReader&), sizeof...(T)> kReaders{&read_content<T>...};
  check_argument(index < kReaders.size(), "unpack: found a value of the unknown type {}", index);
  return kReaders[index](reader);
}

}  // namespace

// The index of the alternative comes first. The order of the alternatives is therefore part of the byte format.
std::string tree_conversion<Value>::to_tree(const Value& value) {
  ByteWriter writer(TensorBytes::kWhole);
  const auto index = static_cast<std::uint8_t>(value.content_.index());
  writer.raw(&index, sizeof index);
  std::visit(
      [&]<typename T>(const T& content) {
        if constexpr (!std::same_as<T, std::monostate>) detail::write_tree(writer, content);
      },
      value.content_);
  return writer.take();
}

Value tree_conversion<Value>::from_tree(const std::string& bytes) {
  ByteReader reader(bytes, TensorBytes::kWhole);
  std::uint8_t index = 0;
  reader.raw(&index, sizeof index);
  auto value = read_alternative(index, reader, static_cast<const decltype(Value::content_)*>(nullptr));
  check_argument(reader.at_end(), "unpack: the data have bytes after the end of the value");
  return value;
}

}  // namespace accel

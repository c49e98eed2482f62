// Types and values of Arrow arrays. The arrays were validated before, so that offsets and lengths fit their buffers.
#include "reference/sources/parquet/column_type.hpp"

#include <ATen/ops/empty.h>
#include <arrow/array.h>
#include <arrow/type.h>
#include <fmt/ranges.h>

#include <cstring>
#include <memory>

#include "reference/core/errors.hpp"

namespace accel::sources {
namespace {

std::optional<at::ScalarType> dtype_of(arrow::Type::type type) {
  switch (type) {
    case arrow::Type::BOOL: return at::kBool;
    case arrow::Type::INT8: return at::kChar;
    case arrow::Type::INT16: return at::kShort;
    case arrow::Type::INT32: return at::kInt;
    case arrow::Type::INT64: return at::kLong;
    case arrow::Type::UINT8: return at::kByte;
    case arrow::Type::UINT16: return at::kUInt16;
    case arrow::Type::UINT32: return at::kUInt32;
    case arrow::Type::UINT64: return at::kUInt64;
    case arrow::Type::HALF_FLOAT: return at::kHalf;
    case arrow::Type::FLOAT: return at::kFloat;
    case arrow::Type::DOUBLE: return at::kDouble;
    default: return std::nullopt;
  }
}

bool is_string_type(const arrow::DataType& type) {
  switch (type.id()) {
    case arrow::Type::STRING:
    case arrow::Type::LARGE_STRING:
    case arrow::Type::BINARY:
    case arrow::Type::LARGE_BINARY: return true;
    default: return false;
  }
}

// The numbers of an array of fixed-size lists of any depth, without the parts that a slice leaves out.
std::shared_ptr<arrow::Array> numbers_of(std::shared_ptr<arrow::Array> array) {
  while (array->type_id() == arrow::Type::FIXED_SIZE_LIST) {
    auto items = static_cast<const arrow::FixedSizeListArray&>(*array).Flatten();
    ensure(items.ok(), "Arrow cannot flatten a list: {}", items.status().ToString());
    array = *std::move(items);
  }
  return array;
}

}  // namespace

std::string ColumnType::text() const {
  return is_string ? "string" : fmt::format("{} [{}]", c10::toString(dtype), fmt::join(row_sizes, ", "));
}

std::optional<ColumnType> column_type_of(const arrow::DataType& type) {
  if (is_string_type(type)) return ColumnType{.is_string = true};
  if (type.id() == arrow::Type::DICTIONARY) {
    const bool is_string = is_string_type(*static_cast<const arrow::DictionaryType&>(type).value_type());
    return is_string ? std::optional(ColumnType{.is_string = true}) : std::nullopt;
  }
  ColumnType result;
  const auto* items = &type;
  while (items->id() == arrow::Type::FIXED_SIZE_LIST) {
    const auto& list = static_cast<const arrow::FixedSizeListType&>(*items);
    if (list.list_size() < 1) return std::nullopt;  // Parquet counts an empty list as a null
    result.row_sizes.push_back(list.list_size());
    items = list.value_type().get();
  }
  const auto dtype = dtype_of(items->id());
  if (!dtype) return std::nullopt;
  result.dtype = *dtype;
  return result;
}

std::int64_t count_nulls(const arrow::Array& array) {
  auto count = array.null_count();
  if (array.type_id() == arrow::Type::FIXED_SIZE_LIST)
    count += count_nulls(*static_cast<const arrow::FixedSizeListArray&>(array).values());
  if (array.type_id() == arrow::Type::DICTIONARY)
    count += count_nulls(*static_cast<const arrow::DictionaryArray&>(array).dictionary());
  return count;
}

at::Tensor tensor_of(const arrow::Array& array, const ColumnType& type) {
  auto sizes = type.row_sizes;
  sizes.insert(sizes.begin(), array.length());
  auto tensor = at::empty(sizes, at::TensorOptions(type.dtype));
  const auto numbers = numbers_of(arrow::MakeArray(array.data()));
  ensure(numbers->length() == tensor.numel(), "an array of {} numbers; expected {}", numbers->length(), tensor.numel());
  if (tensor.numel() == 0) return tensor;  // Arrow may have no buffer
  if (type.dtype == at::kBool) {           // one bit each
    auto* to = tensor.data_ptr<bool>();
    const auto& bits = static_cast<const arrow::BooleanArray&>(*numbers);
    for (std::int64_t place = 0; place < bits.length(); ++place) to[place] = bits.Value(place);
  } else {
    const auto& bytes = *numbers->data()->buffers[1];
    const auto begin = numbers->offset() * static_cast<std::int64_t>(tensor.element_size());
    std::memcpy(tensor.data_ptr(), bytes.data() + begin, tensor.nbytes());
  }
  return tensor;
}

std::string string_of(const arrow::Array& array, std::int64_t row) {
  switch (array.type_id()) {
    case arrow::Type::DICTIONARY: {
      const auto& indices = static_cast<const arrow::DictionaryArray&>(array);
      return string_of(*indices.dictionary(), indices.GetValueIndex(row));
    }
    case arrow::Type::LARGE_STRING:
    case arrow::Type::LARGE_BINARY: return std::string(static_cast<const arrow::LargeBinaryArray&>(array).GetView(row));
    default: return std::string(static_cast<const arrow::BinaryArray&>(array).GetView(row));
  }
}

}  // namespace accel::sources

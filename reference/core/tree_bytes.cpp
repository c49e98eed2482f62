#include "reference/core/tree_bytes.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <limits>

namespace accel::detail {
namespace {

constexpr std::int64_t kUndefined = -1;  // stands for the number of dimensions

}  // namespace

void ByteWriter::text(std::string_view value) {
  count(value.size());
  raw(value.data(), value.size());
}

void ByteWriter::tensor(const at::Tensor& tensor) {
  const std::int64_t dim = tensor.defined() ? tensor.dim() : kUndefined;
  raw(&dim, sizeof dim);
  if (!tensor.defined()) return;
  const auto dtype = tensor.scalar_type();
  raw(&dtype, sizeof dtype);
  raw(tensor.sizes().data(), tensor.sizes().size() * sizeof(std::int64_t));
  if (tensors_ == TensorBytes::kShapeOnly) return;
  const auto whole = tensor.detach().to(at::kCPU).resolve_conj().resolve_neg().contiguous();
  raw(whole.const_data_ptr(), whole.nbytes());
}

void ByteReader::raw(void* data, std::size_t size) {
  check_argument(size <= bytes_.size(), "a packed tree that ends {} bytes short", size - bytes_.size());
  if (size > 0) std::memcpy(data, bytes_.data(), size);
  bytes_.remove_prefix(size);
}

std::size_t ByteReader::count() {
  std::size_t value = 0;
  raw(&value, sizeof value);
  check_argument(value <= bytes_.size(), "a packed tree of {} items in {} bytes", value, bytes_.size());
  return value;
}

std::string ByteReader::text() {
  std::string value(count(), '\0');
  raw(value.data(), value.size());
  return value;
}

at::Tensor ByteReader::tensor() {
  std::int64_t dim = 0;
  raw(&dim, sizeof dim);
  if (dim == kUndefined) return {};
  auto dtype = at::kFloat;
  raw(&dtype, sizeof dtype);
  check_argument(dtype >= at::ScalarType::Byte && dtype < at::ScalarType::Undefined,
                 "a packed tensor of an unknown dtype {}", static_cast<int>(dtype));
  check_argument(dim >= 0 && static_cast<std::size_t>(dim) <= bytes_.size() / sizeof(std::int64_t),
                 "a packed tensor of {} dimensions", dim);
  std::vector<std::int64_t> sizes(dim);
  raw(sizes.data(), sizes.size() * sizeof(std::int64_t));
  const bool has_numbers = tensors_ == TensorBytes::kWhole && std::find(sizes.begin(), sizes.end(), 0) == sizes.end();
  auto room = has_numbers ? static_cast<std::int64_t>(bytes_.size() / at::elementSize(dtype))
                          : std::numeric_limits<std::int64_t>::max() / 64;
  for (const auto size : sizes) {
    check_argument(size >= 0 && size <= room, "a packed tensor of a size of {}", size);
    if (size > 0) room /= size;
  }
  auto tensor = at::empty(sizes, at::TensorOptions(dtype));
  if (tensors_ == TensorBytes::kWhole) raw(tensor.mutable_data_ptr(), tensor.nbytes());
  return tensor;
}

}  // namespace accel::detail

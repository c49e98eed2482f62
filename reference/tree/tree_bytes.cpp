// Binary form of trees. Both ends run the same program on the same kind of machine, so numbers are written in
// native byte order. The reader still checks every count against the remaining bytes: in a simulated run a fault
// may corrupt the data, and a wrong length must not allocate gigabytes.
#include "reference/tree/tree_bytes.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <limits>

namespace accel::detail {
namespace {

constexpr std::int64_t kUndefined = -1;  // written in place of the number of dimensions for an undefined tensor

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

// All reads go through this check, so no other function has to compare with the end of the data.
void ByteReader::raw(void* data, std::size_t size) {
  check_argument(size <= bytes_.size(),
                 "unpack: the data are {} bytes too short; expected the complete result of pack()",
                 size - bytes_.size());
  if (size > 0) std::memcpy(data, bytes_.data(), size);
  bytes_.remove_prefix(size);
}

// Every item needs at least one byte, which bounds the count by the remaining size.
std::size_t ByteReader::count() {
  std::size_t value = 0;
  raw(&value, sizeof value);
  check_argument(value <= bytes_.size(),
                 "unpack: found a count of {} items, but only {} bytes remain; expected the complete result of pack()",
                 value, bytes_.size());
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
                 "unpack: found a tensor with the unknown dtype {}; expected the complete result of pack()",
                 static_cast<int>(dtype));
  check_argument(dim >= 0 && static_cast<std::size_t>(dim) <= bytes_.size() / sizeof(std::int64_t),
                 "unpack: found a tensor with {} dimensions, more than the remaining bytes can describe; expected the "
                 "complete result of pack()",
                 dim);
  std::vector<std::int64_t> sizes(dim);
  raw(sizes.data(), sizes.size() * sizeof(std::int64_t));
  // Bound the product of the sizes before allocating: by the remaining bytes if the elements follow, otherwise by
  // what LibTorch can address. A tensor with a size of 0 has no elements, whatever the other sizes are.
  const bool has_numbers = tensors_ == TensorBytes::kWhole && std::find(sizes.begin(), sizes.end(), 0) == sizes.end();
  auto room = has_numbers ? static_cast<std::int64_t>(bytes_.size() / at::elementSize(dtype))
                          : std::numeric_limits<std::int64_t>::max() / 64;
  for (const auto size : sizes) {
    check_argument(size >= 0 && size <= room,
                   "unpack: found a tensor with the impossible size {}; expected the complete result of pack()", size);
    if (size > 0) room /= size;
  }
  auto tensor = at::empty(sizes, at::TensorOptions(dtype));
  if (tensors_ == TensorBytes::kWhole) raw(tensor.mutable_data_ptr(), tensor.nbytes());
  return tensor;
}

}  // namespace accel::detail

#include "reference/core/tree_bytes.hpp"

#include <ATen/ops/empty.h>

#include <cstring>

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
  ensure(size <= bytes_.size(), "the packed tree ends {} bytes short", size - bytes_.size());
  if (size > 0) std::memcpy(data, bytes_.data(), size);
  bytes_.remove_prefix(size);
}

std::size_t ByteReader::count() {
  std::size_t value = 0;
  raw(&value, sizeof value);
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
  std::vector<std::int64_t> sizes(dim);
  raw(sizes.data(), sizes.size() * sizeof(std::int64_t));
  auto tensor = at::empty(sizes, at::TensorOptions(dtype));
  if (tensors_ == TensorBytes::kWhole) raw(tensor.mutable_data_ptr(), tensor.nbytes());
  return tensor;
}

}  // namespace accel::detail

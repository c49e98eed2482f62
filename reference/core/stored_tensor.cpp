#include "reference/core/stored_tensor.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>

#include "reference/core/errors.hpp"
#include "reference/core/mapped_file.hpp"

namespace accel {
namespace {

// Swaps element by element. The real and imaginary parts of a complex number are swapped separately.
void swap_bytes(const at::Tensor& tensor) {
  const auto width = static_cast<std::size_t>(tensor.element_size()) / (tensor.is_complex() ? 2 : 1);
  auto* bytes = static_cast<char*>(tensor.data_ptr());
  for (std::size_t place = 0; width > 1 && place < tensor.nbytes(); place += width)
    std::reverse(bytes + place, bytes + place + width);
}

at::Tensor empty_of(at::ScalarType dtype, const std::vector<std::int64_t>& sizes) {
  return at::empty(sizes, at::TensorOptions(dtype));
}

}  // namespace

at::Tensor StoredTensor::load() const {
  auto tensor = empty_of(dtype, sizes);
  load_into(tensor);
  return tensor;
}

// Reads directly into the destination if dtype, device and strides allow it: no intermediate copy, so the peak
// memory of loading a model is the model. Otherwise copy_ converts from a temporary tensor.
void StoredTensor::load_into(const at::Tensor& tensor) const {
  ensure(tensor.sizes() == c10::IntArrayRef(sizes), "the destination of a stored tensor has other sizes");
  if (tensor.scalar_type() != dtype || !tensor.is_cpu() || !tensor.is_contiguous()) {
    tensor.copy_(load());
    return;
  }
  ensure(tensor.nbytes() == bytes.size(), "a stored tensor needs {} bytes but has {}", tensor.nbytes(), bytes.size());
  if (file)
    file->copy_out(bytes, static_cast<char*>(tensor.data_ptr()));
  else if (!bytes.empty())
    std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
  if (is_big_endian) swap_bytes(tensor);
}

std::string_view StoredTensor::row_bytes(std::int64_t index) const {
  check_argument(!sizes.empty(), "a stored tensor without dimensions has no rows; expected (rows, ...)");
  check_argument(index >= 0 && index < sizes.front(),
                 "row {} is out of range for a stored tensor with {} rows; expected 0 or more and less than {}", index,
                 sizes.front(), sizes.front());
  const auto width = bytes.size() / static_cast<std::size_t>(sizes.front());
  return bytes.substr(static_cast<std::size_t>(index) * width, width);
}

// `file` is not passed on: copy_out opens the file, which costs more than the page fault of a row.
at::Tensor StoredTensor::row(std::int64_t index) const {
  return StoredTensor{.owner = owner,
                      .bytes = row_bytes(index),
                      .dtype = dtype,
                      .sizes = {sizes.begin() + 1, sizes.end()},
                      .is_big_endian = is_big_endian}
      .load();
}

at::Tensor StoredTensor::rows(const std::vector<std::int64_t>& indices) const {
  check_argument(!sizes.empty(), "a stored tensor without dimensions has no rows; expected (rows, ...)");
  auto result_sizes = sizes;
  result_sizes.front() = static_cast<std::int64_t>(indices.size());
  auto tensor = empty_of(dtype, result_sizes);
  auto* place = static_cast<char*>(tensor.data_ptr());
  for (const auto index : indices) {
    const auto source = row_bytes(index);
    place = std::copy(source.begin(), source.end(), place);
  }
  if (is_big_endian) swap_bytes(tensor);
  return tensor;
}

// Sizes come from files, so the product may overflow. Works in bits because some formats have elements of 4 or 6
// bits.
std::optional<std::int64_t> num_bytes_of(const std::vector<std::int64_t>& sizes, std::int64_t bits_per_element) {
  std::int64_t bits = bits_per_element;
  bool is_empty = false;
  for (const auto size : sizes) {  // continues after a zero: the other sizes must not overflow either
    is_empty |= size == 0;
    if (size < 0 || (size > 0 && __builtin_mul_overflow(bits, size, &bits))) return std::nullopt;
  }
  if (is_empty) return 0;
  return bits % 8 == 0 ? std::optional(bits / 8) : std::nullopt;
}

}  // namespace accel

#include "reference/files/stored_tensor.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>

#include "reference/core/errors.hpp"
#include "reference/files/mapped_file.hpp"

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
  read(0, tensor.nbytes(), static_cast<char*>(tensor.data_ptr()));
  if (is_big_endian) swap_bytes(tensor);
}

void StoredTensor::read(std::size_t begin, std::size_t num_bytes, char* to) const {
  if (num_bytes == 0) return;  // `to` may be null in this case
  if (file) return file->read(offset + begin, num_bytes, to);
  ensure(begin <= bytes.size() && num_bytes <= bytes.size() - begin, "a stored tensor needs {} bytes but has {}",
         begin + num_bytes, bytes.size());
  std::memcpy(to, bytes.data() + begin, num_bytes);
}

void StoredTensor::check_row(std::int64_t index) const {
  check_argument(!sizes.empty(), "a stored tensor without dimensions has no rows; expected (rows, ...)");
  check_argument(index >= 0 && index < sizes.front(),
                 "row {} is out of range for a stored tensor with {} rows; expected 0 or more and less than {}", index,
                 sizes.front(), sizes.front());
}

at::Tensor StoredTensor::row(std::int64_t index) const {
  check_row(index);
  auto tensor = empty_of(dtype, {sizes.begin() + 1, sizes.end()});
  read(static_cast<std::size_t>(index) * tensor.nbytes(), tensor.nbytes(), static_cast<char*>(tensor.data_ptr()));
  if (is_big_endian) swap_bytes(tensor);
  return tensor;
}

// Adjacent rows are read at once: a system call costs more than a copy of a small row.
at::Tensor StoredTensor::rows(const std::vector<std::int64_t>& indices) const {
  check_argument(!sizes.empty(), "a stored tensor without dimensions has no rows; expected (rows, ...)");
  for (const auto index : indices) check_row(index);
  auto result_sizes = sizes;
  result_sizes.front() = static_cast<std::int64_t>(indices.size());
  auto tensor = empty_of(dtype, result_sizes);
  const auto width = indices.empty() ? 0 : tensor.nbytes() / indices.size();
  auto* to = static_cast<char*>(tensor.data_ptr());
  for (std::size_t begin = 0, end = 1; begin < indices.size(); begin = end++) {
    while (end < indices.size() && indices[end] == indices[end - 1] + 1) ++end;
    read(static_cast<std::size_t>(indices[begin]) * width, (end - begin) * width, to + begin * width);
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

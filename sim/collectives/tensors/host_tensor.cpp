#include "sim/collectives/tensors/host_tensor.hpp"

#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>

#include "reference/core/errors.hpp"

namespace accel::sim {
namespace {

using Sizes = HostTensor::Sizes;

Sizes contiguous_strides(const Sizes& sizes) {
  Sizes strides(sizes.size());
  std::int64_t stride = 1;
  for (std::size_t dim = sizes.size(); dim-- > 0;) {
    strides[dim] = stride;
    stride *= std::max<std::int64_t>(sizes[dim], 1);
  }
  return strides;
}

std::int64_t bytes_of(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::ComplexDouble: return 16;
    case c10::ScalarType::Double:
    case c10::ScalarType::Long:
    case c10::ScalarType::UInt64:
    case c10::ScalarType::ComplexFloat: return 8;
    case c10::ScalarType::Float:
    case c10::ScalarType::Int:
    case c10::ScalarType::UInt32:
    case c10::ScalarType::QInt32:
    case c10::ScalarType::ComplexHalf: return 4;
    case c10::ScalarType::Half:
    case c10::ScalarType::BFloat16:
    case c10::ScalarType::Short:
    case c10::ScalarType::UInt16: return 2;
    default: return 1;
  }
}

// Calls `visit(left, right)` with the offsets, in elements, of each innermost row of two tensors, in logical order.
template <typename Visit>
void for_each_row(const Sizes& sizes, const Sizes& left, const Sizes& right, Visit&& visit) {
  const auto dims = sizes.empty() ? 0 : sizes.size() - 1;
  Sizes index(dims);
  std::int64_t at_left = 0, at_right = 0;
  while (true) {
    visit(at_left, at_right);
    auto dim = dims;
    while (dim > 0) {
      --dim;
      at_left += left[dim];
      at_right += right[dim];
      if (++index[dim] < sizes[dim]) break;
      at_left -= left[dim] * sizes[dim];
      at_right -= right[dim] * sizes[dim];
      index[dim] = 0;
      if (dim == 0) return;
    }
    if (dims == 0) return;
  }
}

template <typename Word>
void copy_words(const HostTensor& to, const HostTensor& from) {
  auto* const target = reinterpret_cast<Word*>(to.data());
  const auto* const source = reinterpret_cast<const Word*>(from.data());
  const bool is_scalar = to.dim() == 0;
  const auto count = is_scalar ? 1 : to.sizes().back();
  const auto step = is_scalar ? 1 : to.strides().back(), source_step = is_scalar ? 1 : from.strides().back();
  for_each_row(to.sizes(), to.strides(), from.strides(), [&](std::int64_t at, std::int64_t source_at) {
    for (std::int64_t i = 0; i < count; ++i) target[at + i * step] = source[source_at + i * source_step];
  });
}

struct Pair {
  std::uint64_t low, high;
};

// Calls `f(element)` with a reference to each element, in logical order.
template <typename T, typename F>
void for_each_element(const HostTensor& tensor, F&& f) {
  if (tensor.numel() == 0) return;
  auto* const data = reinterpret_cast<T*>(tensor.data());
  const bool is_scalar = tensor.dim() == 0;
  const auto count = is_scalar ? 1 : tensor.sizes().back(), step = is_scalar ? 1 : tensor.strides().back();
  for_each_row(tensor.sizes(), tensor.strides(), tensor.strides(), [&](std::int64_t at, std::int64_t) {
    for (std::int64_t i = 0; i < count; ++i) f(data[at + i * step]);
  });
}

}  // namespace

HostTensor::HostTensor(std::shared_ptr<const void> owner, void* data, c10::ScalarType dtype, Sizes sizes, Sizes strides)
    : owner_(std::move(owner)),
      data_(static_cast<std::byte*>(data)),
      dtype_(dtype),
      sizes_(std::move(sizes)),
      strides_(std::move(strides)),
      numel_(std::accumulate(sizes_.begin(), sizes_.end(), std::int64_t{1}, std::multiplies<>())) {}

std::int64_t HostTensor::element_size() const { return bytes_of(dtype_); }

bool HostTensor::is_contiguous() const {
  if (numel_ == 0) return true;
  std::int64_t expected = 1;
  for (std::size_t dim = sizes_.size(); dim-- > 0;) {
    if (sizes_[dim] == 1) continue;
    if (strides_[dim] != expected) return false;
    expected *= sizes_[dim];
  }
  return true;
}

bool HostTensor::is_non_overlapping_and_dense() const {
  if (numel_ == 0) return true;
  std::vector<std::size_t> dims;
  for (std::size_t dim = 0; dim < sizes_.size(); ++dim) {
    if (sizes_[dim] != 1) dims.push_back(dim);
  }
  std::ranges::sort(dims, {}, [&](std::size_t dim) { return strides_[dim]; });
  std::int64_t expected = 1;
  for (const auto dim : dims) {
    if (strides_[dim] != expected) return false;
    expected *= sizes_[dim];
  }
  return true;
}

HostTensor HostTensor::view(Sizes sizes) const {
  ensure(is_contiguous(), "a view of a tensor that is not contiguous");
  auto strides = contiguous_strides(sizes);
  HostTensor view(owner_, data_, dtype_, std::move(sizes), std::move(strides));
  ensure(view.numel() == numel_, "a view of {} elements of a tensor of {}", view.numel(), numel_);
  return view;
}

HostTensor HostTensor::rows(std::int64_t begin, std::int64_t end) const {
  auto sizes = sizes_;
  sizes.at(0) = end - begin;
  return {owner_, data_ + begin * strides_.at(0) * element_size(), dtype_, std::move(sizes), strides_};
}

HostTensor HostTensor::in_memory_order() const { return {owner_, data_, dtype_, {numel_}, {1}}; }

HostTensor HostTensor::as_real() const {
  c10::ScalarType real{};
  switch (dtype_) {
    case c10::ScalarType::ComplexHalf: real = c10::ScalarType::Half; break;
    case c10::ScalarType::ComplexFloat: real = c10::ScalarType::Float; break;
    case c10::ScalarType::ComplexDouble: real = c10::ScalarType::Double; break;
    default: return *this;
  }
  auto sizes = sizes_, strides = strides_;
  for (auto& stride : strides) stride *= 2;
  sizes.push_back(2);
  strides.push_back(1);
  return {owner_, data_, real, std::move(sizes), std::move(strides)};
}

HostTensor HostTensor::contiguous() const { return is_contiguous() ? *this : clone(); }

HostTensor HostTensor::clone() const {
  auto result = empty(dtype_, sizes_);
  TensorAlgebra<HostTensor>::copy(result, *this);
  return result;
}

HostTensor empty(c10::ScalarType dtype, Sizes sizes) {
  auto strides = contiguous_strides(sizes);
  const auto numel = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
  const std::shared_ptr<std::byte[]> memory(new std::byte[static_cast<std::size_t>(numel * bytes_of(dtype))]);
  return {memory, memory.get(), dtype, std::move(sizes), std::move(strides)};
}

HostTensor HostTensor::sparse(Sizes sizes, HostTensor indices, HostTensor values) {
  const auto dtype = values.scalar_type();
  HostTensor tensor(nullptr, nullptr, dtype, sizes, contiguous_strides(sizes));
  tensor.entries_ = std::make_shared<const std::array<HostTensor, 2>>(
      std::array<HostTensor, 2>{std::move(indices), std::move(values)});
  return tensor;
}

using Algebra = TensorAlgebra<HostTensor>;

HostTensor Algebra::joined(const std::vector<HostTensor>& tensors) {
  std::int64_t numel = 0, filled = 0;
  for (const auto& tensor : tensors) numel += tensor.numel();
  auto result = empty(tensors.front().scalar_type(), {numel});
  for (const auto& tensor : tensors) {
    copy(result.rows(filled, filled + tensor.numel()).view(tensor.sizes()), tensor);
    filled += tensor.numel();
  }
  return result;
}

void Algebra::copy(const HostTensor& to, const HostTensor& from) {
  ensure(to.scalar_type() == from.scalar_type() && to.sizes() == from.sizes(), "a copy between unequal tensors");
  if (to.numel() == 0) return;
  if (to.is_contiguous() && from.is_contiguous()) {
    std::memmove(to.data(), from.data(), to.nbytes());
    return;
  }
  switch (to.element_size()) {
    case 1: return copy_words<std::uint8_t>(to, from);
    case 2: return copy_words<std::uint16_t>(to, from);
    case 4: return copy_words<std::uint32_t>(to, from);
    case 8: return copy_words<std::uint64_t>(to, from);
    default: return copy_words<Pair>(to, from);
  }
}

// With the tensor's own strides, if it is dense.
HostTensor Algebra::copy_of(const HostTensor& tensor) {
  if (!tensor.is_non_overlapping_and_dense()) return tensor.clone();
  const auto memory = tensor.in_memory_order().clone();
  return {memory.owner().lock(), memory.data(), tensor.scalar_type(), tensor.sizes(), tensor.strides()};
}

// Views, not copies: the parts of an output are written in place.
std::vector<HostTensor> Algebra::parts_of(const HostTensor& tensor, const HostTensor& part, int count) {
  std::vector<HostTensor> parts;
  if (!tensor.is_contiguous()) {
    const auto rows = tensor.size(0) / count;
    for (int index = 0; index < count; ++index) parts.push_back(tensor.rows(index * rows, (index + 1) * rows));
    return parts;
  }
  const auto flat = tensor.view({tensor.numel()});
  for (int index = 0; index < count; ++index)
    parts.push_back(flat.rows(index * part.numel(), (index + 1) * part.numel()).view(part.sizes()));
  return parts;
}

// LibTorch divides numbers of 16 bits in float32.
void Algebra::divide(const HostTensor& tensor, std::int64_t divisor) {
  switch (tensor.scalar_type()) {
    case c10::ScalarType::Float:
      return for_each_element<float>(tensor, [divisor](float& x) { x /= static_cast<float>(divisor); });
    case c10::ScalarType::Double:
      return for_each_element<double>(tensor, [divisor](double& x) { x /= static_cast<double>(divisor); });
    case c10::ScalarType::Half:
      return for_each_element<c10::Half>(
          tensor, [divisor](c10::Half& x) { x = static_cast<float>(x) / static_cast<float>(divisor); });
    case c10::ScalarType::BFloat16:
      return for_each_element<c10::BFloat16>(
          tensor, [divisor](c10::BFloat16& x) { x = static_cast<float>(x) / static_cast<float>(divisor); });
    // How LibTorch divides them depends on its version and on the processor, so the rank divides its result itself.
    case c10::ScalarType::ComplexFloat:
    case c10::ScalarType::ComplexDouble: return;
    default: ensure(false, "a quotient of dtype {}", c10::toString(tensor.scalar_type()));
  }
}

std::vector<bool> Algebra::nans_of(const HostTensor& tensor) {
  std::vector<bool> nans;
  if (const auto pairs = tensor.as_real(); pairs.dim() > tensor.dim()) {
    const auto of_pairs = nans_of(pairs);
    for (std::size_t real = 0; real < of_pairs.size(); real += 2) nans.push_back(of_pairs[real] || of_pairs[real + 1]);
    return nans;
  }
  nans.reserve(static_cast<std::size_t>(tensor.numel()));
  const auto with = [&]<typename T>(T) {
    for_each_element<T>(tensor, [&](const T& x) { nans.push_back(std::isnan(static_cast<double>(x))); });
  };
  switch (tensor.scalar_type()) {
    case c10::ScalarType::Float: with(float()); break;
    case c10::ScalarType::Double: with(double()); break;
    case c10::ScalarType::Half: with(c10::Half()); break;
    case c10::ScalarType::BFloat16: with(c10::BFloat16()); break;
    default: nans.resize(static_cast<std::size_t>(tensor.numel()));
  }
  return nans;
}

template <typename T>
void add_values(const HostTensor& to, const HostTensor& from) {
  auto* const sum = reinterpret_cast<T*>(to.data());
  const auto* const values = reinterpret_cast<const T*>(from.data());
  for (std::int64_t i = 0; i < to.numel(); ++i) sum[i] = static_cast<T>(sum[i] + values[i]);
}

// The dtypes whose sparse tensors LibTorch adds.
void add_entry(const HostTensor& to, const HostTensor& from) {
  switch (to.scalar_type()) {
    case c10::ScalarType::Float: return add_values<float>(to, from);
    case c10::ScalarType::Double: return add_values<double>(to, from);
    case c10::ScalarType::BFloat16: return add_values<c10::BFloat16>(to, from);
    case c10::ScalarType::ComplexFloat: return add_values<std::complex<float>>(to, from);
    case c10::ScalarType::ComplexDouble: return add_values<std::complex<double>>(to, from);
    case c10::ScalarType::Char: return add_values<std::int8_t>(to, from);
    case c10::ScalarType::Byte: return add_values<std::uint8_t>(to, from);
    case c10::ScalarType::Short: return add_values<std::int16_t>(to, from);
    case c10::ScalarType::Int: return add_values<std::int32_t>(to, from);
    case c10::ScalarType::Long: return add_values<std::int64_t>(to, from);
    default:
      throw ArgumentError(
          fmt::format("all_reduce: sparse tensors of dtype {} cannot be added", c10::toString(to.scalar_type())));
  }
}

// As LibTorch, which adds to zeros, so that a value of -0 becomes 0, and copies a tensor if the other has no entries.
HostTensor Algebra::sum_sparse(const std::vector<HostTensor>& tensors) {
  const auto& first = tensors.front();
  const auto has_entries = [](const HostTensor& tensor) { return tensor.values().size(0) > 0; };
  const auto num_filled = std::ranges::count_if(tensors, has_entries);
  if (num_filled == 0) return first;
  if (num_filled == 1) {
    // A copy: its rank may use the memory again before another rank has read the sum.
    const auto& only = *std::ranges::find_if(tensors, has_entries);
    return HostTensor::sparse(only.sizes(), copy_of(only.indices()), copy_of(only.values()));
  }
  // By index: the entries in rank order.
  std::map<Sizes, std::vector<HostTensor>> entries;
  for (const auto& tensor : tensors) {
    const auto indices = tensor.indices().contiguous(), values = tensor.values().contiguous();
    const auto* const numbers = reinterpret_cast<const std::int64_t*>(indices.data());
    for (std::int64_t entry = 0; entry < values.size(0); ++entry) {
      Sizes index;
      for (std::int64_t dim = 0; dim < indices.size(0); ++dim) index.push_back(numbers[dim * values.size(0) + entry]);
      entries[index].push_back(values.rows(entry, entry + 1));
    }
  }
  const auto count = static_cast<std::int64_t>(entries.size());
  auto sizes_of_values = first.values().sizes();
  sizes_of_values.front() = count;
  const auto indices = empty(c10::ScalarType::Long, {first.indices().size(0), count});
  const auto values = empty(first.scalar_type(), sizes_of_values);
  std::fill_n(values.data(), values.nbytes(), std::byte{0});
  auto* const numbers = reinterpret_cast<std::int64_t*>(indices.data());
  std::int64_t entry = 0;
  for (const auto& [index, parts] : entries) {
    for (std::size_t dim = 0; dim < index.size(); ++dim)
      numbers[static_cast<std::int64_t>(dim) * count + entry] = index[dim];
    for (const auto& part : parts) add_entry(values.rows(entry, entry + 1), part);
    ++entry;
  }
  return HostTensor::sparse(first.sizes(), indices, values);
}

}  // namespace accel::sim

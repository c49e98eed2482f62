// Every size in the file is checked before memory is allocated or a tensor is created from it: at::Tensor::set_ itself
// does not check that a view lies inside its storage on all paths, and files may be damaged or malicious.
#include "reference/checkpoint/torch_archive.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "reference/checkpoint/unpickler.hpp"
#include "reference/core/errors.hpp"
#include "reference/files/stored_tensor.hpp"

namespace accel::checkpoint {
namespace {

std::int64_t width_of(at::ScalarType dtype) { return static_cast<std::int64_t>(c10::elementSize(dtype)); }

// A complex number consists of two parts that are swapped separately.
void swap_bytes(char* bytes, std::size_t size, at::ScalarType dtype) {
  const auto width = static_cast<std::size_t>(width_of(dtype)) / (c10::isComplexType(dtype) ? 2 : 1);
  for (std::size_t place = 0; width > 1 && place + width <= size; place += width)
    std::reverse(bytes + place, bytes + place + width);
}

// One past the index of the last element; empty on overflow or negative strides. The view must not be empty.
std::optional<std::int64_t> end_of(const python::TensorView& view) {
  std::int64_t end = view.offset;
  for (std::size_t i = 0; i < view.sizes.size(); ++i) {
    std::int64_t reach = 0;
    if (view.strides[i] < 0 || __builtin_mul_overflow(view.sizes[i] - 1, view.strides[i], &reach) ||
        __builtin_add_overflow(end, reach, &end)) {
      return std::nullopt;
    }
  }
  return __builtin_add_overflow(end, 1, &end) ? std::nullopt : std::optional(end);
}

}  // namespace

TorchArchive::TorchArchive(ZipArchive archive)
    : archive_(std::move(archive)), what_(path() + ": data.pkl"), objects_(archive_.size("data.pkl")) {
  root_ = unpickle(archive_.record("data.pkl"), what_, objects_);
  // Files of torch before 2.1 have no such record and are little-endian.
  if (!archive_.contains("byteorder")) return;
  const auto order = archive_.record("byteorder");
  check_checkpoint(order == "little" || order == "big", "{}: byteorder '{}'; expected little or big", path(), order);
  is_big_endian_ = order == "big";
}

void TorchArchive::check(const python::TensorView& view) const {
  const auto& storage = view.storage;
  check_checkpoint(view.sizes.size() <= kDimensionsMax,
                   "{}: a tensor has {} dimensions; expected at most {}; the file is damaged: copy or save it again",
                   path(), view.sizes.size(), kDimensionsMax);
  const auto bits = width_of(view.dtype) * 8;
  const auto found = archive_.size(storage.record);
  check_checkpoint(static_cast<std::uint64_t>(storage.num_bytes) == found,
                   "{}: record {} has {} bytes, but a tensor expects {}; the file is damaged: copy or save it again",
                   path(), storage.record, found, storage.num_bytes);
  const bool has_form =
      view.sizes.size() == view.strides.size() && view.offset >= 0 && num_bytes_of(view.sizes, bits).has_value();
  const bool is_empty = has_form && *num_bytes_of(view.sizes, bits) == 0;  // an empty view may have any offset
  const auto end = is_empty ? std::optional<std::int64_t>(0) : has_form ? end_of(view) : std::nullopt;
  check_checkpoint(end && *end <= storage.num_bytes / width_of(view.dtype),
                   "{}: a tensor of type {}, offset {}, shape [{}] and strides [{}] lies outside record {} of {} "
                   "bytes; the file is damaged: copy or save it again",
                   path(), toString(view.dtype), view.offset, fmt::join(view.sizes, ", "),
                   fmt::join(view.strides, ", "), storage.record, found);
}

// The complete record is copied even if the view is small: several tensors may share it, and its checksum covers all of
// it. The bytes are swapped by the dtype of the first view; torch.save writes one dtype per storage.
at::Storage TorchArchive::storage(const python::TensorView& view) const {
  check(view);
  auto* allocator = c10::GetCPUAllocator();
  const auto size = archive_.size(view.storage.record);
  auto memory = allocator->allocate(size);
  auto* bytes = static_cast<char*>(memory.get());
  archive_.copy_out(view.storage.record, bytes);
  if (is_big_endian_) swap_bytes(bytes, size, view.dtype);
  return {c10::Storage::use_byte_size_t(), size, std::move(memory), allocator, /*resizable=*/true};
}

at::Tensor TorchArchive::tensor(const python::TensorView& view, const at::Storage& storage) const {
  auto tensor = at::empty({0}, at::TensorOptions(view.dtype));
  tensor.set_(storage, view.offset, view.sizes, view.strides);
  // Materialized, since callers may write such tensors to formats without these bits.
  if (view.is_conj) tensor = tensor.conj().resolve_conj();
  if (view.is_neg) tensor = tensor.neg();
  return tensor;
}

}  // namespace accel::checkpoint

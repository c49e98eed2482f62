// Members of groups whose ranks are processes.
#include <cstring>

#include "reference/comm/fingerprint.hpp"
#include "sim/ranks/group_member_of.hpp"

namespace accel::sim {

using Inspection = TensorInspection<HostTensor>;

TensorDescription Inspection::description_of(const HostTensor& tensor) {
  TensorDescription description{.dtype = tensor.scalar_type(),
                                .sizes = tensor.sizes(),
                                .is_contiguous = tensor.is_contiguous(),
                                .is_dense = tensor.is_non_overlapping_and_dense(),
                                .element_bytes = static_cast<int>(tensor.element_size()),
                                .bytes = static_cast<std::int64_t>(tensor.nbytes())};
  if (!tensor.is_sparse()) {
    description.strides = tensor.strides();
    return description;
  }
  description.layout = "Sparse";
  description.sparse_dim = static_cast<int>(tensor.indices().size(0));
  description.bytes = static_cast<std::int64_t>(tensor.indices().nbytes() + tensor.values().nbytes());
  return description;
}

std::uint64_t Inspection::sample_of(const HostTensor& tensor) {
  if (tensor.is_sparse() || tensor.numel() == 0 || !tensor.is_non_overlapping_and_dense()) return 0;
  return sample_fingerprint(tensor.data(), tensor.nbytes());
}

void Inspection::add_memory(const HostTensor& tensor, bool is_written, std::vector<PendingMemory>& memory) {
  if (tensor.is_sparse()) {
    for (const auto& part : {tensor.indices(), tensor.values()}) add_memory(part, /*is_written=*/false, memory);
    return;
  }
  if (tensor.numel() == 0) return;
  std::int64_t last = 0;  // element
  for (std::size_t dim = 0; dim < tensor.sizes().size(); ++dim)
    last += (tensor.sizes()[dim] - 1) * tensor.strides()[dim];
  const auto* const begin = reinterpret_cast<const char*>(tensor.data());
  memory.push_back({.begin = begin,
                    .end = begin + (last + 1) * tensor.element_size(),
                    .is_written = is_written,
                    .is_freed = [owner = tensor.owner()] { return owner.expired(); }});
}

void Inspection::set_first(const HostTensor& tensor, double value) {
  const auto set = [&]<typename T>(T element) { std::memcpy(tensor.data(), &element, sizeof element); };
  switch (tensor.scalar_type()) {
    case c10::ScalarType::Float: return set(static_cast<float>(value));
    case c10::ScalarType::Double: return set(value);
    case c10::ScalarType::Half: return set(c10::Half(static_cast<float>(value)));
    case c10::ScalarType::BFloat16: return set(c10::BFloat16(static_cast<float>(value)));
    case c10::ScalarType::ComplexFloat: return set(std::array{static_cast<float>(value), 0.0F});
    case c10::ScalarType::ComplexDouble: return set(std::array{value, 0.0});
    case c10::ScalarType::Bool: return set(value != 0);
    case c10::ScalarType::Byte: return set(static_cast<std::uint8_t>(value));
    case c10::ScalarType::Char: return set(static_cast<std::int8_t>(value));
    case c10::ScalarType::Short: return set(static_cast<std::int16_t>(value));
    case c10::ScalarType::Int: return set(static_cast<std::int32_t>(value));
    case c10::ScalarType::Long: return set(static_cast<std::int64_t>(value));
    default: ensure(false, "no value can be written to a tensor of {}", c10::toString(tensor.scalar_type()));
  }
}

void Inspection::flip_bit(const HostTensor& tensor, std::int64_t bit) {
  tensor.data()[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
}

template class GroupMember<HostTensor>;

}  // namespace accel::sim

#include "reference/comm/tensor_fingerprint.hpp"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <array>
#include <bit>

#include "reference/comm/fingerprint.hpp"
#include "reference/comm/operator_watch.hpp"

namespace accel {

// Tensors on a device, or with gaps, are copied first: only bytes in one piece can be hashed.
std::uint64_t fingerprint(const at::Tensor& tensor) {
  if (tensor.is_cpu() && tensor.is_contiguous()) return fingerprint(tensor.const_data_ptr(), tensor.nbytes());
  const auto bytes = tensor.detach().to(at::kCPU).contiguous();
  return fingerprint(bytes.const_data_ptr(), bytes.nbytes());
}

// The pieces are spread evenly from the first byte to the last. Hashing everything would cost as much as a collective;
// a program that overwrites its tensor changes all of it, so a sample suffices.
std::uint64_t sample_fingerprint(const at::Tensor& tensor) {
  constexpr std::size_t kPiece = 64, kPieces = 64;
  if (!has_memory(tensor) || !tensor.is_cpu() || !tensor.is_non_overlapping_and_dense()) return 0;
  const auto* bytes = static_cast<const char*>(tensor.const_data_ptr());
  const std::size_t size = tensor.nbytes();
  if (size <= kPiece * kPieces) return fingerprint(bytes, size);
  std::array<char, kPiece * kPieces> sample;
  for (std::size_t piece = 0; piece < kPieces; ++piece)
    std::copy_n(bytes + (size - kPiece) * piece / (kPieces - 1), kPiece, sample.data() + piece * kPiece);
  return fingerprint(sample.data(), sample.size());
}

// Without creating a tensor. Cached normal samples are part of the state: two generators with equal engines and
// different caches draw different numbers.
std::uint64_t fingerprint(const at::Generator& generator) {
  auto& state = *at::check_generator<at::CPUGeneratorImpl>(generator);
  const auto engine = state.engine().data();
  const auto float_normal = state.next_float_normal_sample();
  const auto double_normal = state.next_double_normal_sample();
  const std::array<std::uint64_t, 6> rest{engine.seed_,
                                          static_cast<std::uint64_t>(engine.left_),
                                          engine.next_,
                                          std::bit_cast<std::uint32_t>(float_normal.value_or(0)),
                                          std::bit_cast<std::uint64_t>(double_normal.value_or(0)),
                                          2u * float_normal.has_value() + double_normal.has_value()};
  return fingerprint(engine.state_.data(), sizeof(engine.state_)) + fingerprint(rest.data(), sizeof(rest));
}

}  // namespace accel

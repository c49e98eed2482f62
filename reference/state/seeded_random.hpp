#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "reference/rank_local/random.hpp"

namespace accel {

/// While it lives, the rank draws from generators that begin with `seed`, on the CPU and on its device. Afterwards the
/// rank's generators continue where they were. Thread rule: the thread that created it.
class SeededRandom {
 public:
  explicit SeededRandom(std::uint64_t seed);
  ~SeededRandom();
  SeededRandom(const SeededRandom&) = delete;
  SeededRandom& operator=(const SeededRandom&) = delete;

 private:
  GeneratorScope scope_;
  std::optional<at::Generator> device_;
  at::Tensor state_of_device_;
};

}  // namespace accel

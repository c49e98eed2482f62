#include "reference/tensor_parallel/cut_random.hpp"

#include "reference/core/splitmix64.hpp"

namespace accel::parallel {

CutRandom::CutRandom(const Group& group) {
  if (group.size() == 1) return;
  const auto drawn = static_cast<std::uint64_t>(draw_int64(default_generator()));
  random_.emplace(splitmix64(drawn + static_cast<std::uint64_t>(group.rank())));
}

}  // namespace accel::parallel

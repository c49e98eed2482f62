#include "reference/tensor_parallel/cut_random.hpp"

namespace accel::parallel {
namespace {

// splitmix64: neighbouring ranks must not have related seeds.
std::uint64_t mixed(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

}  // namespace

CutRandom::CutRandom(const Group& group) {
  if (group.size() == 1) return;
  const auto drawn = static_cast<std::uint64_t>(draw_int64(default_generator()));
  scope_.emplace(make_generator(mixed(drawn + static_cast<std::uint64_t>(group.rank()))));
}

}  // namespace accel::parallel

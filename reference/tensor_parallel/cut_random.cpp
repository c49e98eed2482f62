#include "reference/tensor_parallel/cut_random.hpp"

#include "reference/state/rank_context.hpp"
#include "reference/state/rng_sync.hpp"

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
  const auto seed = mixed(drawn + static_cast<std::uint64_t>(group.rank()));
  scope_.emplace(make_generator(seed));
  const auto* context = find_current_rank();
  if (context == nullptr || context->device.is_cpu()) return;
  device_ = device_generator(*context);
  state_of_device_ = device_->get_state();
  device_->set_current_seed(seed);
}

CutRandom::~CutRandom() {
  if (device_) device_->set_state(state_of_device_);
}

}  // namespace accel::parallel

// Connects a rank's Accelerator to the simulator: the library reports phases and steps through StepListener and
// does not know which backend listens.
#include "sim/backend/sim_listener.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <array>
#include <bit>

#include "reference/core/random.hpp"
#include "sim/backend/fingerprint.hpp"

namespace accel::sim {
namespace {

// Hashes everything that `get_state` returns, without creating a tensor per step. Cached normal samples are
// part of the state: two generators with equal engines and different caches draw different numbers.
std::uint64_t state_of(at::CPUGeneratorImpl& generator) {
  const auto engine = generator.engine().data();
  const auto float_normal = generator.next_float_normal_sample();
  const auto double_normal = generator.next_double_normal_sample();
  const std::array<std::uint64_t, 6> rest{engine.seed_,
                                          static_cast<std::uint64_t>(engine.left_),
                                          engine.next_,
                                          std::bit_cast<std::uint32_t>(float_normal.value_or(0)),
                                          std::bit_cast<std::uint64_t>(double_normal.value_or(0)),
                                          2u * float_normal.has_value() + double_normal.has_value()};
  return fingerprint(engine.state_.data(), sizeof(engine.state_)) + fingerprint(rest.data(), sizeof(rest));
}

}  // namespace

// Reading the loss is the simulator's own work, so the operator clock must not charge it.
void SimListener::begin_backward(const at::Tensor& loss) {
  if (recorder_ && loss.numel() > 0) {
    const at::DisableRecordFunctionGuard no_clock;
    recorder_->add_loss(rank_, loss.detach().flatten()[0].item<double>());
  }
  world_->reach(rank_, StepPoint::kBackward);
}

// Compares every prepared model, whether or not this update changed its parameters: a rank that bypasses the
// gradients' all-reduce trains a different model. Models that keep their gradients local are left out.
void SimListener::after_update() {
  world_->reach(rank_, StepPoint::kUpdated);
  ReplicaVote::Models models;
  std::erase_if(replicas_, [&](const auto& weak) {
    auto replicas = weak.lock();
    const bool is_gone = !replicas;
    if (!is_gone && !replicas->are_local) models.push_back(std::move(replicas));
    return is_gone;
  });
  if (models.empty()) return;
  const at::DisableRecordFunctionGuard no_clock;
  auto hashes = hashes_of(models);
  if (recorder_) recorder_->add_update(rank_, names_of(models), hashes);
  vote_->cast(rank_, models, std::move(hashes),
              state_of(*at::check_generator<at::CPUGeneratorImpl>(default_generator())));
  world_->clocks().discard_compute(rank_);  // the vote is not part of the program
}

}  // namespace accel::sim

#include "reference/prepared/replicated_model.hpp"

#include <torch/nn/module.h>

#include <utility>

namespace accel {

ParallelModel::Restore ReplicatedModel::suspend_sync() {
  return [ddp = ddp_, before = std::exchange(ddp_->sync_flags.backward, false)] { ddp->sync_flags.backward = before; };
}

ParallelModel::Restore ReplicatedModel::sync_next_backward() {
  const auto before = ddp_->sync_flags;
  ddp_->synchronize_next_backward();
  return [ddp = ddp_, before] { ddp->sync_flags = before; };
}

// Other numbers of ranks save none.
void ReplicatedModel::load_sync_state(const Value& state) {
  if (state.contains("buckets")) ddp_->load_state_dict(state);
}

sharded::MemoryAccount ReplicatedModel::memory_account() {
  auto account = UnshardedModel::memory_account();
  for (const auto& parameter : each_once(module()->parameters())) {
    if (parameter.requires_grad() && has_own_buckets_)
      account.add(sharded::MemoryKind::kBuckets, static_cast<std::int64_t>(parameter.nbytes()));
  }
  return account;
}

const char* ReplicatedModel::reason_to_see_outputs() const {
  return options().autocast ? UnshardedModel::reason_to_see_outputs() : "find_unused_parameters or static_graph";
}

}  // namespace accel

// join_uneven_inputs: training on ranks with different numbers of batches. Follows
// torch/distributed/algorithms/join.py: before each forward the ranks count who still takes part, and a rank without
// batches repeats ("shadows") the collectives of one step of the others, with zeros.
#include <algorithm>

#include "reference/accelerator/training_step.hpp"
#include "reference/parallel/distributed_data_parallel.hpp"
#include "reference/rank_local/call_site.hpp"
#include "reference/state/warnings.hpp"

namespace accel {
namespace {

// Restores the loaders' settings and leaves the join, however the body ends. The destructor only resets local flags: it
// must not communicate, since after an exception the other ranks may be anywhere.
struct JoinScope {
  std::vector<std::pair<std::shared_ptr<detail::Loader>, bool>> loaders;
  std::vector<DistributedDataParallel*> joined;

  JoinScope() = default;
  JoinScope(const JoinScope&) = delete;
  JoinScope& operator=(const JoinScope&) = delete;
  ~JoinScope() {
    for (auto* model : joined) model->cancel_join();
    for (auto& [loader, even_batches] : loaders) loader->set_even_batches(even_batches);
  }

  // Returns whether every loader supports the override: a stream has no length to divide, and a dispatching loader
  // gives every rank the same number of batches.
  bool set_even_batches(const std::vector<std::weak_ptr<detail::Loader>>& prepared, bool even_batches) {
    bool is_complete = true;
    for (const auto& weak : prepared) {
      auto loader = weak.lock();
      if (!loader) continue;
      if (loader->is_dispatched() || loader->is_stream()) {
        is_complete = false;
        continue;
      }
      loaders.emplace_back(loader, loader->even_batches());
      loader->set_even_batches(even_batches);
    }
    return is_complete;
  }
};

// Repeats the collectives of the ranks that still have batches, until none has. Returns whether this rank finished
// last. Only the first model counts the ranks, once per step; a step that synchronized also ends the window.
bool shadow_remaining_ranks(const std::vector<DistributedDataParallel*>& joined, GradientPipeline& path) {
  bool is_last = true;
  while (joined.front()->num_active_ranks() > 0) {
    is_last = false;
    bool synchronised = false;
    for (auto* model : joined) synchronised = model->shadow_step() || synchronised;
    if (synchronised) path.shadow_window();
  }
  return is_last;
}

}  // namespace

void TrainingStep::join_uneven_inputs(const std::vector<Joinable>& models, JoinOptions options,
                                      const std::function<void()>& body, std::source_location where) {
  JoinScope scope;
  auto& joined = scope.joined;
  if (options.even_batches && !scope.set_even_batches(training().loaders, *options.even_batches) && is_main_process())
    warn_once(
        *context_,
        "join_uneven_inputs: even_batches has no effect on loaders of iterable datasets and on those that dispatch "
        "batches");
  // Ranks that read parts of their own stay uneven, whatever the override says.
  const bool any_independent =
      std::any_of(training().loaders.begin(), training().loaders.end(), [](const std::weak_ptr<detail::Loader>& weak) {
        const auto loader = weak.lock();
        return loader && loader->ranks_are_independent();
      });
  if (any_independent || !options.even_batches.value_or(even_batches())) {
    for (const auto& model : models) {
      if (auto* ddp = model.model_->joinable()) joined.push_back(ddp);
    }
  } else if (shards() && is_main_process()) {
    warn_once(*context_, "join_uneven_inputs: has no effect on sharded models");
  }
  for (auto* model : joined) model->begin_join(/*notifies=*/model == joined.front());
  body();
  if (joined.empty()) return;
  const CallSite site(where);
  for (auto* model : joined) model->end_join();
  const bool is_last = shadow_remaining_ranks(joined, *training().path);
  // The gradient pipeline's shared state (loss scale, guard) must match the model that all ranks adopt, so it is taken
  // from the same rank.
  joined.front()->sync_final_state(is_last, training().path->shared_state());
  for (auto* model : joined) model->sync_final_model(is_last);
  if (context_->listener) context_->listener->end_join();
}

}  // namespace accel

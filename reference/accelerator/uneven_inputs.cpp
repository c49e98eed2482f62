#include "reference/accelerator/training_step.hpp"
#include "reference/core/call_site.hpp"
#include "reference/parallel/distributed_data_parallel.hpp"

namespace accel {
namespace {

// Loaders as they were and models without a join, however the body ends.
struct JoinScope {
  std::vector<std::pair<std::shared_ptr<LoaderCore>, bool>> loaders;
  std::vector<DistributedDataParallel*> joined;

  JoinScope() = default;
  JoinScope(const JoinScope&) = delete;
  JoinScope& operator=(const JoinScope&) = delete;
  ~JoinScope() {
    for (auto* model : joined) model->cancel_join();
    for (auto& [loader, even_batches] : loaders) loader->set_even_batches(even_batches);
  }

  void set_even_batches(const std::vector<std::weak_ptr<LoaderCore>>& prepared, bool even_batches) {
    for (const auto& weak : prepared) {
      auto loader = weak.lock();
      if (!loader || loader->is_dispatched()) continue;
      loaders.emplace_back(loader, loader->even_batches());
      loader->set_even_batches(even_batches);
    }
  }
};

// Repeats the collectives of ranks that have batches, until there are none. Returns whether this rank was the last.
bool shadow_others(const std::vector<DistributedDataParallel*>& joined, GradientPath& path) {
  bool is_last = true;
  while (joined.front()->num_taking_part() > 0) {
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
  if (options.even_batches) scope.set_even_batches(training_.loaders, *options.even_batches);
  if (!options.even_batches.value_or(even_batches())) {
    for (const auto& model : models) {
      if (auto* ddp = model.model_->joinable()) joined.push_back(ddp);
    }
  }
  for (auto* model : joined) model->begin_join(/*notifies=*/model == joined.front());
  body();
  if (joined.empty()) return;
  const CallSite site(where);
  for (auto* model : joined) model->end_join();
  const bool is_last = shadow_others(joined, *training_.path);
  joined.front()->sync_final_state(is_last, training_.path->shared_state());
  for (auto* model : joined) model->sync_final_model(is_last);
  if (context_->listener) context_->listener->end_join();
}

}  // namespace accel

#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "reference/accelerator/training_step.hpp"
#include "reference/data/data_loader.hpp"
#include "reference/elastic/elastic_ranks.hpp"
#include "reference/elastic/shard_tree.hpp"
#include "reference/tree/value.hpp"

/// Training whose bits do not depend on how many ranks compute it.
///
///     auto [model, optimizer] = accelerator.prepare(net, adam);
///     accelerator.elastic({.logical_ranks = 64}, [&](accel::ElasticRun& run) {
///       for (auto& step : run.steps(loader, /*num_epochs=*/3)) {      // `loader` is not prepared
///         const auto loss = step.update([&](auto& batch) { return loss_of(model(batch.data), batch.target); },
///                                       [&] {
///                                         optimizer.step();
///                                         optimizer.zero_grad();
///                                       });
///       }
///     });
///
/// A step has one batch for each logical rank. The ranks share the logical ranks out, and each computes the losses and
/// gradients of its own one after the other. Samples, random numbers and the weight of a loss belong to the logical
/// rank; gradients are summed in the order of elastic/shard_tree.hpp, in the dtype of the parameters. So 1, 3 and 64
/// ranks end with the same parameters, to the last bit, if they compute on the same kind of processor.
///
/// With `min_ranks` the training survives its ranks: when a process ends or does not answer for 10 s, the others give
/// up the step under way, agree on who is left, and repeat the step; a rank that missed the end of a step gets its
/// gradients from one that did not. Rank numbers and the world size change then, and prepared loaders divide their
/// samples anew. Other collectives within the body belong into `repeatable`. Ranks over Gloo can be lost, and simulated
/// ones by faults that end their processes.
///
/// A lost rank that is started anew joins the others between two steps: its program runs from the beginning, `update`
/// returns the losses of the steps that the others have taken without computing them, `repeatable` does nothing, and
/// the first step that they have not taken begins with the state of one of them. So the body may depend on losses, but
/// not on what a `repeatable` function has left, unless that is registered for checkpointing.
///
/// Thread rule: the rank's thread.
namespace accel {

namespace detail {

/// Which samples the logical ranks read: a pure function of epoch, step and logical rank.
class ElasticOrder {
 public:
  struct Options {
    std::int64_t num_samples = 0, batch_size = 1;
    int num_shards = 1;
    bool shuffle = false, drop_last = false;
    std::int64_t seed = 0, first_epoch = 0;
  };
  explicit ElasticOrder(Options options) : options_(options) {}

  [[nodiscard]] std::int64_t steps_per_epoch() const;
  /// The batch of a logical rank. The last step of an epoch is filled with the first samples of its order.
  [[nodiscard]] std::vector<std::int64_t> indices(std::int64_t epoch, std::int64_t step, int shard);

 private:
  Options options_;
  std::int64_t epoch_ = -1;  // of order_
  std::vector<std::int64_t> order_;
};

}  // namespace detail

/// The body of Accelerator::elastic gets one.
class ElasticRun {
 public:
  /// Of Accelerator::elastic. Collective. `follow_world`: called after ranks have changed.
  ElasticRun(TrainingStep& accelerator, RankContext& context, TrainingState& state, ElasticOptions options,
             std::function<void()> follow_world, const std::vector<std::string>& more_problems = {});
  ~ElasticRun();
  ElasticRun(const ElasticRun&) = delete;
  ElasticRun& operator=(const ElasticRun&) = delete;

  /// The logical ranks that this rank computes.
  [[nodiscard]] elastic::ShardRange shards() const { return shards_; }
  [[nodiscard]] int logical_ranks() const { return options_.logical_ranks; }

  template <typename Dataset, typename Collate>
  class Steps;
  /// A range of the steps of some epochs, which go on with the shuffles of earlier ranges: see ElasticStep. `loader`
  /// gives dataset, batch size of a logical rank,
  /// shuffle and drop_last. Throws ArgumentError for a prepared loader, and for other options of it.
  template <MapDataset Dataset, typename Collate>
  [[nodiscard]] Steps<Dataset, Collate> steps(const DataLoader<Dataset, Collate>& loader, std::int64_t num_epochs = 1) {
    return Steps<Dataset, Collate>(*this, loader, num_epochs);
  }

  /// Runs `body`, which communicates, such as an evaluation; again if a rank is lost. It must not change what a
  /// repetition reads. Collective.
  void repeatable(const std::function<void()>& body);

  /// See ElasticStep::update.
  at::Tensor update(const std::function<at::Tensor(int shard)>& loss_of, const std::function<void()>& apply);

  /// The steps that have been taken.
  [[nodiscard]] std::int64_t num_steps() const { return num_steps_; }
  /// Whether the next step, or repeatable body, was taken by others before this rank joined them.
  [[nodiscard]] bool is_replaying() const { return replayed_ < position_; }
  /// The times that the ranks of the training have changed.
  [[nodiscard]] int num_changes() const { return num_changes_; }
  [[nodiscard]] RankContext& context() const { return context_; }
  /// Of Accelerator::elastic, after the body. Collective.
  void finish();
  [[nodiscard]] detail::ElasticOrder order_of(const DataLoaderOptions& options, bool is_prepared,
                                              std::int64_t num_samples, std::int64_t num_epochs);

 private:
  struct Gradients;
  class StepBuffers;
  class LocalPasses;
  // What a step leaves to all ranks: the mean of the gradients, then the number of logical ranks that have each; the
  // mean loss; the buffers.
  struct Reduced {
    at::Tensor gradients, loss;
    std::vector<at::Tensor> buffers;

    [[nodiscard]] std::vector<at::Tensor> tensors() const;
    [[nodiscard]] static Reduced of_tensors(const std::vector<at::Tensor>& tensors, c10::Device device);
  };

  using Receive = std::function<void(Reduced step)>;
  // What a rank lacks after a change of ranks.
  enum class Lack : std::int64_t { kNothing, kLastStep, kState };

  [[nodiscard]] Reduced reduce(const std::function<at::Tensor(int shard)>& loss_of);
  void advance(const std::function<void()>& compute, const std::function<void()>& change, const Receive& receive);
  [[nodiscard]] bool succeeds(const std::function<void()>& body);
  [[nodiscard]] std::optional<bool> recover(const Receive& receive);
  void enter(const elastic::View& view);
  void exchange(Lack own, const Receive& receive);
  void send_last_step(int source, bool is_behind, const Receive& receive);
  void send_state(int source, bool lacks_state);
  [[nodiscard]] Value state() const;
  void take_over(const Value& state);

  TrainingStep& accelerator_;
  RankContext& context_;
  TrainingState& state_;
  ElasticOptions options_;
  std::function<void()> follow_world_;
  elastic::ShardRange shards_;
  std::int64_t seed_;                            // of all random numbers, drawn by rank 0
  std::int64_t num_steps_ = 0, num_epochs_ = 0;  // of all loops
  // Of a training that survives its ranks:
  std::unique_ptr<elastic::ElasticRanks> ranks_;  // null: a lost rank ends the job
  elastic::View view_;
  int world_size_, num_changes_ = 0;
  int num_failures_ = 0;         // of the step under way, with these ranks
  std::int64_t position_ = 0;    // steps and repeatable bodies that this rank has completed, or whose state it has
  std::int64_t replayed_ = 0;    // of these: the program has come to so many
  bool has_state_ = true;        // false: this rank joins, and has received nothing
  std::optional<Value> taken_;   // what it has received, until its program has come to the position
  std::vector<double> losses_;   // of all steps, for ranks that join
  std::optional<Reduced> last_;  // the step that has led to the position; nothing if that was a repeatable body
};

/// A step of all logical ranks.
template <typename Dataset, typename Collate>
class ElasticStep {
 public:
  using Batch = detail::BatchOf<Dataset, Collate>;

  [[nodiscard]] std::int64_t epoch() const { return epoch_; }
  /// From 0, in the epoch.
  [[nodiscard]] std::int64_t number() const { return number_; }

  /// For each logical rank of this rank: `loss_of(batch)`, which computes the loss with a prepared model, and its
  /// backward pass. Then, once, with the mean of all gradients: `apply()`, which clips, steps the optimizers and
  /// schedules, and clears gradients. Neither communicates: a rank may have fewer logical ranks than others. If a rank
  /// is lost, losses are computed again, and `apply` is called once nevertheless; while the run is_replaying neither is
  /// called. Returns the mean loss of all logical ranks: float64, shape []. Throws StateError if a gradient was not
  /// cleared. Collective.
  template <typename LossOf, typename Apply>
  at::Tensor update(LossOf&& loss_of, Apply&& apply) {
    auto loss = run_->update(
        [&](int shard) {
          auto batch = detail::fetch_batch(*dataset_, *collate_, order_->indices(epoch_, number_, shard));
          batch = map_tensors(batch, [&](const at::Tensor& tensor) { return tensor.to(run_->context().device); });
          return at::Tensor(loss_of(batch));
        },
        apply);
    is_taken_ = true;
    return loss;
  }

 private:
  friend class ElasticRun::Steps<Dataset, Collate>;
  ElasticRun* run_ = nullptr;
  std::shared_ptr<Dataset> dataset_;
  std::shared_ptr<Collate> collate_;
  std::shared_ptr<detail::ElasticOrder> order_;
  std::int64_t epoch_ = 0, number_ = 0;
  bool is_taken_ = false;
};

template <typename Dataset, typename Collate>
class ElasticRun::Steps : private DataLoader<Dataset, Collate> {
 public:
  using Step = ElasticStep<Dataset, Collate>;

  Steps(ElasticRun& run, const DataLoader<Dataset, Collate>& loader, std::int64_t num_epochs)
      : DataLoader<Dataset, Collate>(loader), num_epochs_(num_epochs) {
    step_.run_ = &run;
    step_.dataset_ = this->dataset_;
    step_.collate_ = this->collate_;
    step_.order_ = std::make_shared<detail::ElasticOrder>(
        run.order_of(loader.options(), this->loader_->is_prepared(), this->dataset_->size(), num_epochs));
  }

  [[nodiscard]] std::int64_t per_epoch() const { return step_.order_->steps_per_epoch(); }

  class Iterator {
   public:
    using value_type = Step;
    using difference_type = std::ptrdiff_t;
    Iterator() = default;
    explicit Iterator(Steps& steps) : steps_(&steps) {}
    Step& operator*() const { return steps_->step_; }
    Iterator& operator++() {
      steps_->advance();
      return *this;
    }
    void operator++(int) { ++*this; }
    bool operator==(std::default_sentinel_t) const {
      return steps_->per_epoch() == 0 || steps_->step_.epoch_ >= steps_->num_epochs_;
    }

   private:
    Steps* steps_ = nullptr;
  };
  /// Goes on after the last step that an earlier loop over this range has taken.
  [[nodiscard]] Iterator begin() {
    if (step_.is_taken_) advance();
    return Iterator(*this);
  }
  [[nodiscard]] std::default_sentinel_t end() const { return {}; }

 private:
  void advance() {
    step_.is_taken_ = false;
    if (++step_.number_ == per_epoch()) {
      step_.number_ = 0;
      ++step_.epoch_;
    }
  }

  std::int64_t num_epochs_;
  Step step_;
};

}  // namespace accel

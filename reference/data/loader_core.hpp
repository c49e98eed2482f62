#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reference/config/options.hpp"
#include "reference/data/batch_sampler.hpp"
#include "reference/state/rank_context.hpp"

/// What all loaders share that does not depend on the type of a sample: the order of indices, the draws of an
/// iteration, and what it tells the rank. Thread rule: the rank's thread.
namespace accel {

/// Arguments of a DataLoader; names and defaults are torch.utils.data.DataLoader's.
struct DataLoaderOptions {
  std::int64_t batch_size = 1;
  bool shuffle = false;
  bool drop_last = false;
  int num_workers = 0;      ///< threads that read ahead; 0: the rank's own thread reads
  int prefetch_factor = 2;  ///< batches that each worker reads ahead
  std::optional<at::Generator> generator;  ///< of the shuffle and of the iterations' seeds; default: the rank's
  std::shared_ptr<Sampler> sampler;        ///< excludes shuffle
};

/// How a loader is sharded; made by Accelerator::prepare.
struct ShardOptions {
  RankContext* context = nullptr;
  DataLoaderConfiguration config;
  std::vector<std::string> rng_types = {"generator"};
  bool put_on_device = true;
};

class LoaderCore {
 public:
  /// A plain loader. Throws ArgumentError with all problems of the options.
  LoaderCore(std::int64_t num_samples, DataLoaderOptions options);
  /// The same loader, sharded for one rank. Draws what Accelerate's prepare draws: one int64 of the default generator for
  /// a random sampler without a generator among several ranks (unless seedable), else nothing. Collective for a seedable
  /// sampler without data_seed: its seed is rank 0's.
  LoaderCore(const LoaderCore& plain, ShardOptions shard);

  /// Number of batches of this rank.
  [[nodiscard]] std::int64_t size() const { return batches_.size(); }
  [[nodiscard]] const ShardPlan& plan() const { return batches_.plan(); }
  [[nodiscard]] std::int64_t total_batch_size() const { return plan().total_batch_size(); }
  [[nodiscard]] std::int64_t total_dataset_length() const { return num_samples_; }
  [[nodiscard]] const DataLoaderOptions& options() const { return options_; }
  [[nodiscard]] bool is_prepared() const { return shard_.context != nullptr; }
  [[nodiscard]] c10::Device device() const;
  [[nodiscard]] bool moves_batches() const;
  [[nodiscard]] bool non_blocking() const { return shard_.config.non_blocking; }
  /// Completed passes; the epoch that the next pass tells its sampler.
  [[nodiscard]] std::int64_t iteration() const { return iteration_; }
  void set_epoch(std::int64_t epoch) { iteration_ = epoch; }

  /// One pass over the loader. While it lives, a prepared loader is the rank's active one; leaving the loop early, by
  /// break, return or exception, takes it off again.
  class Pass {
   public:
    explicit Pass(LoaderCore& core);
    ~Pass();
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;

    /// Seed of this pass's workers: worker w has a generator seeded with base_seed + w.
    [[nodiscard]] std::int64_t base_seed() const { return base_seed_; }
    std::optional<std::vector<std::int64_t>> next_indices() { return core_.batches_.next(); }
    /// The batch about to be handed out is the last.
    void mark_end() { active_.end_of_dataloader = true; }
    /// The pass has been read to its end: counts it and takes the loader off.
    void finish(bool any_batch);

   private:
    LoaderCore& core_;
    ActiveLoader active_;
    std::int64_t base_seed_ = 0;
  };

 private:
  void synchronize_rng();

  std::int64_t num_samples_;
  DataLoaderOptions options_;
  ShardOptions shard_;
  std::shared_ptr<Sampler> sampler_;
  std::optional<at::Generator> synchronized_generator_;
  BatchSamplerShard batches_;
  std::int64_t iteration_ = 0;
};

}  // namespace accel

#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reference/config/plugins/options.hpp"
#include "reference/data/samplers/batch_sampler.hpp"
#include "reference/data/samplers/sampler.hpp"
#include "reference/state/rank_context.hpp"

/// Inputs of a loader: its arguments, its dataset, and how prepare shards it. Thread rule: values.
namespace accel {

/// Arguments of a DataLoader, with the names and defaults of torch.utils.data.DataLoader.
struct DataLoaderOptions {
  std::int64_t batch_size = 1;
  bool shuffle = false;
  bool drop_last = false;
  /// Number of prefetching threads; 0: the rank's thread reads. A stream without parts uses at most one.
  int num_workers = 0;
  int prefetch_factor = 2;  ///< number of batches that each worker reads ahead
  /// Generator of the shuffle and of the workers' seeds; default: the rank's. Loaders whose position is saved need one
  /// each.
  std::optional<at::Generator> generator = {};
  std::shared_ptr<Sampler> sampler = {};             ///< excludes shuffle
  std::shared_ptr<BatchSampler> batch_sampler = {};  ///< excludes batch_size, shuffle, drop_last and sampler
  /// true: batches are copied to pinned memory where they are read, and from there to a GPU without waiting. Default:
  /// the rank's thread does that for the batches of a prepared loader. false: not at all. Without a GPU true has no
  /// effect, and a warning says so.
  std::optional<bool> pin_memory = {};
  /// Time in seconds that a loop waits for a batch of a worker before it throws Error; 0: no limit. The worker's thread
  /// is then left behind until the dataset returns.
  double timeout = 0;
  /// Called on the thread of each worker, before it reads, with its number. An exception is thrown by the loop.
  std::function<void(int worker_id)> worker_init_fn = {};
  /// Keeps the workers from one pass to the next: their random numbers continue, worker_init_fn is called once, and
  /// only the first pass draws a seed for them. Excludes num_workers 0.
  bool persistent_workers = false;
};

/// Properties of the dataset of a loader.
struct DataSource {
  bool is_stream = false;                       ///< an iterable dataset, without indices
  std::int64_t num_shards = 0;                  ///< number of separately readable parts of a stream; 0: none
  std::optional<std::int64_t> size = {};        ///< number of samples; nullopt for a stream of unknown length
  std::optional<at::Generator> generator = {};  ///< generator of a stream, which gets rank 0's state before each pass
};

/// The ranks that read different samples: the complete world, unless several ranks of a mesh share a batch.
struct DataParallel {
  int size = 1, rank = 0;
  Group group = {};  ///< contains one rank per batch of a step, in order
};

/// How a loader is sharded; created by Accelerator::prepare.
struct ShardOptions {
  RankContext* context = nullptr;
  DataParallel data_parallel = {};
  DataLoaderConfiguration config = {};
  std::vector<std::string> rng_types = {"generator"};
  bool put_on_device = true;
};

}  // namespace accel

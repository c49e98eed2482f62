#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reference/config/options.hpp"
#include "reference/data/samplers/batch_sampler.hpp"
#include "reference/data/samplers/sampler.hpp"
#include "reference/state/rank_context.hpp"

/// What a loader is made from: its own arguments, its dataset, and how prepare shards it. Thread rule: values.
namespace accel {

/// Arguments of a DataLoader; names and defaults are torch.utils.data.DataLoader's.
struct DataLoaderOptions {
  std::int64_t batch_size = 1;
  bool shuffle = false;
  bool drop_last = false;
  /// Threads that read ahead; 0: the rank's own thread reads. A stream without parts has one at most.
  int num_workers = 0;
  int prefetch_factor = 2;  ///< batches that each worker reads ahead
  /// Of the shuffle and of the iterations' seeds; default: the rank's. Loaders whose place is saved need one each.
  std::optional<at::Generator> generator = {};
  std::shared_ptr<Sampler> sampler = {};             ///< excludes shuffle
  std::shared_ptr<BatchSampler> batch_sampler = {};  ///< excludes batch_size, shuffle, drop_last and sampler
};

/// What a loader reads from.
struct DataSource {
  bool is_stream = false;                       ///< an iterable dataset: no index
  std::int64_t num_shards = 0;                  ///< parts of a stream that can be read apart; 0: it has none
  std::optional<std::int64_t> size = {};        ///< number of samples; a stream may not know it
  std::optional<at::Generator> generator = {};  ///< of a stream that has one: takes rank 0's state before each pass
};

/// The ranks that read different samples: all of the world, unless a mesh has several ranks share one batch.
struct DataParallel {
  int size = 1, rank = 0;
  Group group = {};  ///< of one rank for each batch of a step, in order
};

/// How a loader is sharded; made by Accelerator::prepare.
struct ShardOptions {
  RankContext* context = nullptr;
  DataParallel data_parallel = {};
  DataLoaderConfiguration config = {};
  std::vector<std::string> rng_types = {"generator"};
  bool put_on_device = true;
};

}  // namespace accel

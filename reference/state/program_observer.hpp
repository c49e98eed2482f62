#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace accel {

/// Observes what a program reads, updates, gathers and writes, so that `sim-run check` can judge it. Without an
/// observer nothing of this is computed. Observing must change neither results nor random numbers.
///
/// Thread rule: the rank's thread.
class ProgramObserver {
 public:
  virtual ~ProgramObserver() = default;

  // --- loaders ------------------------------------------------------------------------------------------------------
  using LoaderHandle = std::shared_ptr<const void>;  ///< identifies a loader
  struct LoaderFacts {
    std::optional<std::int64_t> size = {};  ///< samples of the dataset; nullopt if samples are known by content only
    std::optional<std::int64_t> batch_size = {};
    bool drop_last = false, shuffles = false;
    bool is_divided = false;  ///< each rank reads a part
    int num_workers = 0;
  };
  struct ReadBatch {
    std::vector<std::int64_t> indices = {};  ///< of the samples in the dataset; empty if they are unknown
    std::vector<at::Tensor> tensors = {};
    /// State of the dataset's generator before this batch; undefined if the batch drew no numbers.
    at::Tensor drawn_from = {};
    int reader = -1;  ///< the worker that read the batch; -1: the rank's thread
  };
  /// `begins_inside`: the pass continues one that was saved, or skips batches.
  virtual void begin_pass(const LoaderHandle& loader, const LoaderFacts& facts, bool begins_inside) = 0;
  virtual void read_batch(const LoaderHandle& loader, const ReadBatch& batch) = 0;
  /// The loader has no more batches.
  virtual void end_pass(const LoaderHandle& loader) = 0;

  // --- updates ------------------------------------------------------------------------------------------------------
  struct Update {
    const void* optimizer = nullptr;          ///< identifies it
    std::vector<at::Tensor> parameters = {};  ///< those that every rank holds completely
    std::vector<at::Tensor> state = {};       ///< of the optimizer, for these parameters
    std::vector<double> learning_rates = {};  ///< by group
  };
  /// The gradients are those that the optimizer uses: averaged and clipped.
  virtual void before_update(const Update& update) = 0;
  virtual void after_update(const Update& update) = 0;
  /// A gradient clipping, before it acts. `parameters`: those that every rank holds completely. `call`:
  /// "clip_grad_norm_".
  virtual void clip(std::string_view call, const std::vector<at::Tensor>& parameters, double limit) = 0;

  // --- metrics and output -------------------------------------------------------------------------------------------
  /// `call`: "gather" or "gather_for_metrics", with the rows of each tensor of its result.
  virtual void gather(std::string_view call, const std::vector<std::int64_t>& rows) = 0;
  /// A file is written.
  virtual void write_file(const std::string& path) = 0;
  /// A line is printed.
  virtual void print_line(const std::string& line) = 0;
};

}  // namespace accel

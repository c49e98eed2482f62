#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "reference/core/named_tensors.hpp"
#include "reference/state/program_observer.hpp"
#include "sim/programs/comparison/recording.hpp"

namespace torch::nn {
class Module;
}

namespace accel::programs {

/// Records what `sim-run check` judges besides losses and parameters, in the form of
/// backends/python/simranks/audit.py: samples, learning rates, gradients, clipping, gathered metrics, files and lines.
///
/// Thread rule: the rank's thread.
class ProgramAudit : public ProgramObserver {
 public:
  using Add = std::function<void(Observation)>;
  /// `folder`: of the recording, whose files are not the program's.
  ProgramAudit(Add add, std::string folder) : add_(std::move(add)), folder_(std::move(folder)) {}

  void begin_pass(const LoaderHandle& loader, const LoaderFacts& facts, bool begins_inside) override;
  void read_batch(const LoaderHandle& loader, const ReadBatch& batch) override;
  void end_pass(const LoaderHandle& loader) override;
  void before_update(const Update& update) override;
  void after_update(const Update& update) override;
  void clip(std::string_view call, const std::vector<at::Tensor>& parameters, double limit) override;
  void gather(std::string_view call, const std::vector<std::int64_t>& rows) override;
  void write_file(const std::string& path) override;
  void print_line(const std::string& line) override;

  /// A model whose buffers are compared at the end.
  void add_model(const torch::nn::Module& model);
  /// Collectives of the rank, as StepObserver::take_collectives returns them.
  void add_collectives(const std::vector<std::string>& calls);
  /// Records the last state of models and optimizers. Nothing is recorded afterwards.
  void finish();

 private:
  struct Buffer {
    std::string name, owner;  // the class of its module
    at::Tensor value;
  };
  struct SeenLoader {
    std::weak_ptr<const void> loader;
    std::string label;  // the line of its loop
    int num_passes = 0;
  };

  void add(std::string kind, std::string value, std::string name = {}, std::string detail = {});
  SeenLoader& seen(const LoaderHandle& loader);
  // In the order of the first updates; updates_.size() before the first.
  [[nodiscard]] std::size_t number_of(const Update& update) const;

  Add add_;  // null after finish()
  std::string folder_;
  std::vector<SeenLoader> loaders_;
  std::map<std::string, int> num_loaders_;  // by line
  std::vector<Update> updates_;             // the last one of each optimizer, in the order of their first updates
  std::vector<Buffer> buffers_;
  int num_models_ = 0;
};

/// From here on, files and lines that the threads of ranks write are reported to the ranks' observers.
/// Files are seen if the process was started with process::write_watcher.
void observe_output();

}  // namespace accel::programs

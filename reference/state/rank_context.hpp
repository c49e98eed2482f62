#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "reference/comm/group.hpp"
#include "reference/core/files.hpp"
#include "reference/core/random.hpp"
#include "reference/state/gradient_state.hpp"
#include "reference/state/step_listener.hpp"

namespace accel {

/// Prints "accel: warning: {text}" to standard error.
void print_warning(const std::string& text);

/// All that a rank knows of itself. Many ranks may live in one process, so nothing of this is process-wide: device,
/// group and generator come from here.
///
/// Thread rule: the rank's own thread.
struct RankContext {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  int restart_count = 0;         ///< how often a launcher has started all ranks again: what was saved can be loaded
  std::string backend = "none";  ///< "gloo", "nccl", "sim", or "none" for one process without a group
  int num_threads = 0;           ///< intra-op threads; 0 leaves LibTorch's setting. Ranks that share cores have 1
  c10::Device device = c10::Device(c10::kCPU);
  Group world = {};
  at::Generator generator = {};  ///< the rank's default CPU generator
  GradientState gradient_state = {};
  /// Makes the group of some world ranks; every rank of the world calls it, in the same order, members or not. The
  /// group is only usable on members.
  std::function<Group(const std::vector<int>& ranks)> new_group;
  std::shared_ptr<Files> files = std::make_shared<PosixFiles>();  ///< what is saved goes there
  std::shared_ptr<StepListener> listener = {};                    ///< null where nobody listens
  std::function<void(const std::string& text)> print;  ///< one text to standard output, never mixed with another's
  std::function<void(const std::string& text)> warn = print_warning;  ///< of what is probably a mistake, and no error
  bool has_prepared = false;  ///< an Accelerator has prepared a model for this rank
  std::string hint = {};      ///< what an error of LibTorch's that ends the rank may come from
};

/// Runs `body`, the rank's program. An error of LibTorch's becomes a StateError with the rank's hint, if there is one.
int run_with_hint(const RankContext& context, const std::function<int()>& body);

/// A rank of its own: one process, no group.
std::unique_ptr<RankContext> make_single_rank();

/// The rank that this thread runs. Throws StateError outside `accel::run` and `run_ranks`.
RankContext& current_rank();

/// Null on a thread that runs no rank.
RankContext* find_current_rank();

/// Of the rank that this thread runs; null also where it runs none.
std::shared_ptr<StepListener> current_listener();

/// Makes `context` the thread's rank, and its generator the thread's default, until the scope ends. Sets what threads
/// do not inherit: intra-op threads, gradients on, autocast off, backward passes on this thread.
class RankScope {
 public:
  explicit RankScope(RankContext& context);
  ~RankScope();
  RankScope(const RankScope&) = delete;
  RankScope& operator=(const RankScope&) = delete;

 private:
  GeneratorScope generator_;
  RankContext* previous_;
};

}  // namespace accel

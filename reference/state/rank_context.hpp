#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "reference/comm/group.hpp"
#include "reference/core/device.hpp"
#include "reference/core/system/print_warning.hpp"
#include "reference/files/files.hpp"
#include "reference/rank_local/libc_random.hpp"
#include "reference/rank_local/random.hpp"
#include "reference/state/gradient_state.hpp"
#include "reference/state/program_observer.hpp"
#include "reference/state/step_observer.hpp"

namespace accel {

namespace elastic {
class ElasticRanks;
}

/// The index of the batch that a rank reads in each step, among those of all ranks.
struct BatchPlace {
  int size = 1, index = 0;
};

/// The state of a rank. Several ranks may live in one process, so nothing in it is process-wide: device, groups and
/// generators come from here.
///
/// Thread rule: the rank's own thread.
struct RankContext {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  int restart_count = 0;  ///< number of restarts by the launcher; above 0, saved states can be loaded
  int rank_in_job = 0;    ///< with which the job has started: `rank` may change in an elastic training
  /// The process of a rank that was lost: alone, and no main process, until it joins the others in
  /// accelerator.elastic.
  bool joins_elastic = false;
  std::string backend = "none";  ///< "gloo", "nccl", "sim", or "none" for one process without a group
  int num_threads = 0;           ///< intra-op threads; 0 keeps LibTorch's setting. Ranks that share cores use 1
  c10::Device device = c10::Device(c10::kCPU);
  Group world = {};
  at::Generator generator = {};                  ///< the rank's default CPU generator
  std::shared_ptr<LibcRandom> libc_random = {};  ///< of std::rand; null: the process's own
  /// What set_seed adds for device_specific; unset: the rank. An Accelerator with a mesh sets it, so that
  /// tensor-parallel ranks, which compute the same, draw the same numbers.
  std::optional<int> seed_index = {};
  /// Unset: each rank reads a separate batch. An Accelerator with a mesh sets it.
  std::optional<BatchPlace> batch_place = {};
  GradientState gradient_state = {};
  /// Creates a group of some world ranks. Every rank of the world calls it in the same order, whether it is a member or
  /// not. The group is usable only on members.
  std::function<Group(const std::vector<int>& ranks)> new_group;
  /// Joins the ranks of the world in a training that goes on without those it loses, while at least `min_ranks` are
  /// left: see elastic/elastic_ranks.hpp. Collective. Null where a lost rank ends the job.
  std::function<std::unique_ptr<elastic::ElasticRanks>(RankContext& context, int min_ranks)> join_elastic = {};
  /// Sets how long collectives of the world and of later groups wait for their peers; null where none has a time-out.
  std::function<void(std::chrono::milliseconds timeout)> set_timeout = {};
  /// Records how the program has ended, for whoever watches the job. `error`: null after success. Returns whether the
  /// watcher prints the error. Throws DiagnosedError if the job has to end with an error nevertheless. Null where
  /// nobody watches.
  std::function<bool(const std::exception* error)> record_end = {};
  /// Ends the rank's groups after its program; collective. Null where the end of the process does that.
  std::function<void()> leave = {};
  /// Records the work that `body` queues on the device, without running it. Null where devices lack graphs.
  std::function<std::unique_ptr<DeviceGraph>(const std::function<void()>& body)> capture_graph = {};
  std::shared_ptr<Files> files = std::make_shared<PosixFiles>();  ///< destination of everything that is saved
  std::shared_ptr<StepObserver> listener = {};                    ///< null if there is no listener
  std::shared_ptr<ProgramObserver> program_observer = {};         ///< null if nobody observes the program
  /// Set: the orders of prepared samplers without a generator, and the random numbers of a sample, follow from this
  /// seed, so that runs on different numbers of ranks read the same samples.
  std::optional<std::uint64_t> sample_seed = {};
  std::function<void(const std::string& text)> print;  ///< writes one text to standard output without interleaving
  std::function<void(const std::string& text)> warn = print_warning;  ///< reports a warning; called by warn_once
  std::shared_ptr<std::set<std::string>> warned = std::make_shared<std::set<std::string>>();  ///< texts: see warn_once
  std::vector<std::weak_ptr<void>> accelerator_states = {};  ///< in the order of creation: see AcceleratorState
  bool has_prepared = false;                                 ///< an Accelerator has prepared a model on this rank
  /// What the rank has to complete before it ends, such as saves in the background; see finish_saves.
  std::vector<std::function<void()>> unfinished_saves = {};
  std::string hint = {};  ///< likely cause of a LibTorch error that ends the rank; empty: none
};

/// Runs `body`, the rank's program, and returns its result. After a result of 0 it completes the rank's saves, whose
/// errors are those of the program. Converts a LibTorch error to a StateError without stack frames, with the rank's
/// hint.
int run_program(RankContext& context, const std::function<int()>& body);

/// Completes the unfinished saves in their order. Throws the error of the first that fails. Collective.
void finish_saves(RankContext& context);

/// Creates the context of a single process without a group.
std::unique_ptr<RankContext> make_single_rank();

/// Returns the rank that this thread runs. Throws StateError outside `accel::run` and `run_ranks`.
RankContext& current_rank();

/// Returns the rank that this thread runs, or null if it runs none.
RankContext* find_current_rank();

/// Returns the listener of the rank that this thread runs; null if it has none or the thread runs no rank.
std::shared_ptr<StepObserver> current_listener();

/// Returns the observer of the program of the rank that this thread runs; null if there is none.
std::shared_ptr<ProgramObserver> current_program_observer();

/// Makes `context` the rank of this thread, and its generator the default generator, until the scope ends. Sets what
/// threads do not inherit: intra-op threads, gradients enabled, autocast disabled, backward passes on this thread.
class RankScope {
 public:
  explicit RankScope(RankContext& context);
  ~RankScope();
  RankScope(const RankScope&) = delete;
  RankScope& operator=(const RankScope&) = delete;

 private:
  GeneratorScope generator_;
  LibcRandomScope libc_random_;
  RankContext* previous_;
};

}  // namespace accel

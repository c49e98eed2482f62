#include "tests/support/run_ranks.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "backends/gloo/gloo_backend.hpp"
#include "reference/core/errors.hpp"
#include "reference/recorder/rank_recorder.hpp"
#include "sim/backend/simulate.hpp"

namespace accel::testing {
namespace {

// Runs ranks on real Gloo, one thread per rank, with a store in memory.
// Gloo on threads instead of processes keeps a property with hundreds of cases fast. Each rank still has its own
// Gloo context, sockets or shared memory, so the bytes take the same path as between processes.
void run_gloo_threads(int num_ranks, const std::function<void(RankContext&)>& body, const gloo::GlooOptions& options,
                      bool is_recorded) {
  // The interposition that makes threads act as ranks must be linked in, or all ranks would share one generator.
  verify_interposition();
  // LibTorch's flight recorder exists once per process and writes its table of groups without a lock, so that the
  // groups of several threads would race for it.
  setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/1);
  auto store = c10::make_intrusive<c10d::HashStore>();
  const auto record = recorder::JobRecord::create({.world_size = num_ranks, .num_local = num_ranks});
  // One slot per rank, so no lock is needed.
  std::vector<std::string> errors(num_ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        RankContext context;
        context.rank = context.local_rank = rank;
        context.world_size = context.local_world_size = num_ranks;
        context.backend = "gloo";
        context.num_threads = 1;
        context.generator = make_generator(c10::default_rng_seed_val);
        auto recorded = options;
        if (is_recorded) recorded.recorder = std::make_shared<recorder::RankRecorder>(record, rank);
        gloo::join_groups(context, store, recorded, gloo::make_group);
        // Output of ranks would interleave in the test log.
        context.print = [](const std::string&) {};
        const RankScope scope(context);
        body(context);
        context.world.barrier();  // no rank leaves while another still communicates with it
      } catch (const std::exception& error) {
        errors[rank] = error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  std::string all;
  for (int rank = 0; rank < num_ranks; ++rank) {
    if (!errors[rank].empty()) all += "rank " + std::to_string(rank) + ": " + errors[rank] + "\n";
  }
  if (!all.empty()) throw Error(all);
}

}  // namespace

std::string name_of(Backend backend) {
  switch (backend) {
    case Backend::kSim: return "Sim";
    case Backend::kGlooThreads: return "GlooThreads";
    case Backend::kGlooTcpThreads: return "GlooTcpThreads";
    case Backend::kGlooUnrecordedThreads: return "GlooUnrecordedThreads";
    default: return "GlooSharedMemoryThreads";
  }
}

void run_ranks(Backend backend, int num_ranks, const std::function<void(RankContext&)>& body,
               std::chrono::milliseconds timeout) {
  if (backend == Backend::kSim) {
    sim::simulate({.num_ranks = num_ranks, .timeout = timeout}, body);
  } else {
    gloo::GlooOptions options{.timeout = timeout};
    if (backend == Backend::kGlooTcpThreads) options.transport = gloo::Transport::kTcp;
    const bool is_recorded = backend != Backend::kGlooUnrecordedThreads;
    if (backend == Backend::kGlooSharedMemoryThreads || !is_recorded)
      options.transport = gloo::Transport::kSharedMemory;
    run_gloo_threads(num_ranks, body, options, is_recorded);
  }
}

}  // namespace accel::testing

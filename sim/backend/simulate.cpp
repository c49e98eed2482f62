// Runs a program on simulated ranks that are threads: gives each its context.
// This is the only place that knows both the engine and the library's RankContext.
#include "sim/backend/simulate.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

#include <iostream>
#include <mutex>
#include <numeric>
#include <thread>

#include "reference/core/system/resource_limits.hpp"
#include "reference/rank_local/exit_point.hpp"
#include "sim/backend/crash_report.hpp"
#include "sim/backend/operator_clock.hpp"
#include "sim/backend/sim_backend.hpp"
#include "sim/backend/sim_elastic_ranks.hpp"
#include "sim/backend/sim_observer.hpp"
#include "sim/backend/thread_guard.hpp"
#include "sim/ranks/newcomers.hpp"

namespace accel::sim {
namespace {

// Builds the rank's context on the rank's own thread: the guard and the operator clock register thread-local
// callbacks, and grad mode and autocast are thread-local as well. The order of construction matters: `scope`
// must end before the objects that it refers to.
// `num_starts`: of the rank's process before.
void run_process(const SimulationOptions& options, const SimulatedRank& simulated, int num_starts, std::mutex& output,
                 const std::function<void(RankContext&)>& body) {
  auto member = simulated.member;
  member.guard = std::make_shared<ThreadGuard>(*member.world, member.rank);
  const auto world = member.world;
  const int rank = member.rank;
  RankContext context;
  std::vector<int> ranks{rank};  // of the world: alone until it joins the others
  context.rank_in_job = rank;
  context.joins_elastic = num_starts > 0;
  if (!context.joins_elastic) {
    ranks.resize(options.num_ranks);
    std::iota(ranks.begin(), ranks.end(), 0);
    context.rank = context.local_rank = rank;
    context.world_size = context.local_world_size = options.num_ranks;
  }
  const auto suffix = context.joins_elastic ? fmt::format(" of rank {}, started anew {}", rank, num_starts) : "";
  context.restart_count = simulated.restart_count;
  context.backend = "sim";
  // One intra-op thread: the ranks already use all cores, and results must not depend on the number of cores.
  context.num_threads = 1;
  context.generator = make_generator(c10::default_rng_seed_val);
  context.libc_random = make_libc_random();
  context.world = accel::Group("world" + suffix, make_process_group(member, "world" + suffix, ranks));
  context.new_group = group_maker(member, ranks, suffix, options.faults);
  SharedByRanks shared{.comparison = simulated.comparison, .newcomers = simulated.newcomers, .faults = options.faults};
  context.join_elastic = [member, shared](RankContext& own, int min_ranks) mutable {
    ++shared.num_elastic_runs;
    return join_elastic(own, member, shared, min_ranks);
  };
  context.listener = std::make_shared<SimObserver>(world, simulated.comparison, simulated.recorder, rank);
  context.print = [&output](const std::string& text) {
    const std::lock_guard lock(output);
    std::cout << text << std::flush;
  };
  context.warn = [world](const std::string& text) { world->failures().warn(text); };
  if (options.faults) context.files = options.faults->files(*world, rank, context.files);
  const auto device = options.place ? options.place(context) : nullptr;
  const RankScope scope(context);
  const CrashScope crash(*world, rank);
  const OperatorClock clock([&](double seconds) { world->clocks().advance(rank, seconds); }, options.operator_seconds);
  const auto program = [&] {
    body(context);
    return 0;
  };
  const auto end = run_until_exit([&] { return run_program(context, program); });
  if (end.code != 0) throw Error(fmt::format("the program called {}({}); expected code 0", end.function, end.code));
  finish_saves(context);  // of a program that called std::exit(0)
}

// One process after the other, if faults end them and start them anew.
void run_thread(const SimulationOptions& options, const SimulatedRank& simulated, std::mutex& output,
                const std::function<void(RankContext&)>& body) {
  for (int num_starts = 0;; ++num_starts) {
    try {
      return run_process(options, simulated, num_starts, output, body);
    } catch (...) {
      if (!simulated.newcomers->wait_for_start(simulated.member.rank)) throw;
    }
  }
}

void warm_up_mkl_kernels() {
  const auto matrix = at::ones({64, 64}), batch = at::ones({4, 16, 16}), vector = at::ones({64});
  at::mm(matrix, matrix);
  at::addmm(vector, matrix, matrix.t());
  at::bmm(batch, batch);
  at::bmm(batch, batch.transpose(1, 2));
  at::mv(matrix, vector);
  at::dot(vector, vector);
  for (const auto function : {at::exp, at::log, at::tanh, at::erf, at::sqrt, at::sin, at::cos}) function(matrix);
}

// MKL detects the processor's features in its first call, without a lock. Of two concurrent first calls one
// chose another kernel and produced other bits (2 of 60 runs of a linear layer on 2 ranks). Each family of
// functions has its own first call: 1 of 100 runs of a sharded transformer on 3 ranks had other bits when only
// matrix products had been called before. So all families are called once per process, on a thread with one
// intra-op thread, as ranks have: the caller's OpenMP threads would spin beside busy cores, which made 593
// short runs take 72 s instead of 1.1 s.
void warm_up_mkl_once() {
  static std::once_flag done;
  std::call_once(done, [] {
    start_thread("the thread that prepares MKL", [] {
      at::set_num_threads(1);
      warm_up_mkl_kernels();
    }).join();
  });
}

}  // namespace

SimulationReport rehearse(const SimulationOptions& options, const std::function<void(RankContext&)>& body) {
  try {
    verify_interposition();
    warm_up_mkl_once();
  } catch (...) {
    return {.error = std::current_exception()};
  }
  std::mutex output;
  return rehearse_ranks(options, [&](const SimulatedRank& simulated) { run_thread(options, simulated, output, body); });
}

void simulate(const SimulationOptions& options, const std::function<void(RankContext&)>& body) {
  const auto report = rehearse(options, body);
  for (const auto& finding : report.findings) std::cerr << "simulation: warning: " << finding << std::endl;
  if (report.error) std::rethrow_exception(report.error);
}

}  // namespace accel::sim

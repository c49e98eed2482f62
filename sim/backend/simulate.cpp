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

namespace accel::sim {
namespace {

// Builds the rank's context on the rank's own thread: the guard and the operator clock register thread-local
// callbacks, and grad mode and autocast are thread-local as well. The order of construction matters: `scope`
// must end before the objects that it refers to.
void run_thread(const SimulationOptions& options, const SimulatedRank& simulated, std::mutex& output,
                const std::function<void(RankContext&)>& body) {
  auto member = simulated.member;
  member.guard = std::make_shared<ThreadGuard>(*member.world, member.rank);
  const auto world = member.world;
  const int rank = member.rank;
  RankContext context;
  context.rank = context.local_rank = rank;
  context.world_size = context.local_world_size = options.num_ranks;
  context.restart_count = simulated.restart_count;
  context.backend = "sim";
  // One intra-op thread: the ranks already use all cores, and results must not depend on the number of cores.
  context.num_threads = 1;
  context.generator = make_generator(c10::default_rng_seed_val);
  context.libc_random = make_libc_random();
  std::vector<int> everyone(options.num_ranks);
  std::iota(everyone.begin(), everyone.end(), 0);
  context.world = accel::Group("world", make_process_group(member, "world", everyone));
  // Group names are counted per rank. All ranks create groups in the same order, as c10d requires, so equal
  // names mean the same group; the engine checks that the members agree.
  context.new_group = [member, faults = options.faults, count = 0](const std::vector<int>& ranks) mutable {
    const auto name = fmt::format("group{}", ++count);
    if (faults) faults->on_rendezvous(*member.world, member.rank);
    member.world->group(name, ranks);
    const bool is_member = std::find(ranks.begin(), ranks.end(), member.rank) != ranks.end();
    return is_member ? accel::Group(name, make_process_group(member, name, ranks)) : accel::Group();
  };
  context.join_elastic = [member, comparison = simulated.comparison](RankContext& own, int min_ranks) {
    return join_elastic(own, member, comparison, min_ranks);
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

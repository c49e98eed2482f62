// accel::run: the entry point of every user program. Under sim-run (ACCEL_SIM is set) it runs the program on the
// requested ranks; otherwise it makes the one rank that a launcher's variables describe. It lives in sim/ and not in
// reference/ because it must know both the simulator and the real backends, which reference/ may not include.

#include <malloc.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "reference/config/environment.hpp"
#include "reference/core/system/resource_limits.hpp"
#include "reference/mesh/mesh.hpp"
#include "reference/run.hpp"
#include "sim/programs/comparison/recorder.hpp"
#include "sim/programs/entry/process_rank.hpp"
#include "sim/programs/entry/real_rank.hpp"
#include "sim/programs/layouts/rank_costs.hpp"
#include "sim/programs/rehearsal/exit_code.hpp"
#include "sim/programs/rehearsal/output_files.hpp"
#include "sim/programs/rehearsal/report_run.hpp"
#include "sim/programs/rehearsal/sim_request.hpp"
#include "sim/programs/rehearsal/thread_ranks.hpp"

namespace accel {
namespace {

using programs::SimRequest;

int report(const std::exception& error) {
  std::cerr << "error: " + message_of(error) + "\n" << std::flush;  // at once: other ranks may write too
  return programs::exit_code_of(error);
}

// std::exit(0) inside the program does not return to run_program. With another code the other ranks may not be there.
void finish_saves_at_exit(int code, void* /*unused*/) {
  auto* rank = find_current_rank();
  if (code != 0 || rank == nullptr) return;
  try {
    finish_saves(*rank);
  } catch (const std::exception& error) {
    _exit(report(error));
  }
}

void record_end(const RankContext& rank, int code) {
  if (!rank.record_end) return;
  const Error error(fmt::format("train returned {}", code));
  rank.record_end(code == 0 ? nullptr : &error);
}

// Runs this process as one rank over a real backend; "" selects the backend that fits the machine.
int run_real(const std::string& backend, const programs::RecordOptions& record, const std::function<int()>& train) {
  std::unique_ptr<RankContext> context;
  try {
    verify_interposition();
    context = programs::make_real_rank(backend);
    programs::record_rank(*context, record);
    const RankScope scope(*context);
    on_exit(finish_saves_at_exit, nullptr);
    const int code = run_program(*context, train);
    record_end(*context, code);
    if (code == 0 && context->leave) context->leave();
    if (code != 0) programs::keep_until_exit(std::move(context));
    return code;
  } catch (const std::exception& error) {
    const bool is_reported = context && context->record_end && context->record_end(&error);
    const int exit_code = is_reported ? programs::exit_code_of(error) : report(error);
    // Destroying the context here would close its connections, and peers would fail with "connection closed" before
    // this process has ended with its own error. See keep_until_exit.
    programs::keep_until_exit(std::move(context));
    return exit_code;
  }
}

// By default glibc returns large blocks to the kernel and maps them again on the next allocation. That costs page
// faults and the process-wide mmap lock, on which ranks running as threads would queue up.
void keep_freed_memory() {
#ifdef __GLIBC__
  constexpr int kBytesMax = 32 << 20;  // the maximum that glibc accepts for M_MMAP_THRESHOLD
  mallopt(M_MMAP_THRESHOLD, kBytesMax);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
#endif
}

int run_simulated(const SimRequest& request, const std::function<int()>& train) {
  keep_freed_memory();
  const programs::Rehearsal rehearsal(request.rehearsal, request.ranks);
  const auto report = programs::run_threads_or_exit(rehearsal, "error", collective_timeout(), [&](RankContext& rank) {
    programs::record_rank(rank, request.record);
    train();
  });
  programs::acknowledge_end(request);
  return programs::report_run(rehearsal, request, report, "error");
}

// A recorder ends the program after the steps that it was asked to record.
int code_of(const std::function<int()>& train) {
  try {
    return train();
  } catch (const programs::EnoughRecorded&) {
    return 0;
  }
}

// For `sim-run layouts`: the environment has the layout.
int run_first_rank(const SimRequest& request, const std::function<int()>& train) {
  const auto tensor_parallel = environment_int({mesh_axes()[kTensorAxis].variable}).value_or(1);
  auto network = sim::Network::load(request.rehearsal.network);
  const auto costs = programs::rank_costs({request.ranks, /*needs_divided_layers=*/tensor_parallel > 1}, network,
                                          [&](RankContext&) { train(); });
  programs::write_text(request.record.costs, programs::to_json(costs));
  programs::acknowledge_end(request);
  return programs::kSuccess;
}

int run_requested(const SimRequest& request, const std::function<int()>& train) {
  programs::acknowledge(request);
  const auto problem = programs::problem_of_map_cuda(request.rehearsal);
  check_config(problem.empty(), "{}", problem);
  // Under sim-run the exit code describes how the run ended (exit_code.hpp), so a nonzero code returned by `train` must
  // not pass through: 3 would look like a diagnosed hang. It becomes an error of the rank instead.
  const auto checked_train = [&] {
    const int code = code_of(train);
    if (code != 0) throw Error(fmt::format("train returned {}; expected 0; throw an error to report a failure", code));
    return programs::kSuccess;
  };
  if (!request.record.costs.empty()) return run_first_rank(request, checked_train);
  if (const auto simulated = programs::read_process_rank())
    return programs::run_process_rank(*simulated, request.record, checked_train);
  return request.backend == "sim" ? run_simulated(request, checked_train)
                                  : run_real(request.backend, request.record, checked_train);
}

}  // namespace

// No exception leaves this function: user programs write `return accel::run(argc, argv, train);` in main, and an
// uncaught exception would end them by std::terminate, without the exit code that launchers rely on.
int run(int argc, char** argv, const std::function<int(int, char**)>& train) {
  const auto bound_train = [&] { return train(argc, argv); };
  try {
    const auto request = programs::read_sim_request();
    return request ? run_requested(*request, bound_train) : run_real("", {}, bound_train);
  } catch (const std::exception& error) {
    return report(error);
  }
}

}  // namespace accel

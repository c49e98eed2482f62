#include <malloc.h>

#include <iostream>

#include "reference/core/errors.hpp"
#include "reference/run.hpp"
#include "sim/programs/runtime/exit_code.hpp"
#include "sim/programs/runtime/real_rank.hpp"
#include "sim/programs/runtime/rehearsal.hpp"
#include "sim/programs/runtime/sim_request.hpp"
#include "sim/programs/runtime/sweep.hpp"

namespace accel {
namespace {

using programs::SimRequest;

int report(const std::exception& error) {
  std::cerr << "error: " << error.what() << std::endl;
  return programs::exit_code_of(error);
}

// A rank of this process over a real backend; "" takes the one that fits.
int run_real(const std::string& backend, const std::function<int()>& train) {
  std::unique_ptr<RankContext> context;
  try {
    verify_interposition();
    context = programs::make_real_rank(backend);
    const RankScope scope(*context);
    return run_with_hint(*context, train);
  } catch (const std::exception& error) {
    const int exit_code = report(error);
    programs::keep_until_exit(std::move(context));
    return exit_code;
  }
}

// glibc gives large blocks back to the kernel and takes them anew, with fresh page faults and under one lock of the
// process, which ranks on threads would queue for.
void keep_freed_memory() {
#ifdef __GLIBC__
  constexpr int kBytesMax = 32 << 20;  // the most that glibc takes
  mallopt(M_MMAP_THRESHOLD, kBytesMax);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
#endif
}

// Standard output is the program's own; what the rehearsal has to say goes to standard error.
int run_simulated(const SimRequest& request, const std::function<int()>& train) {
  keep_freed_memory();
  const programs::Rehearsal rehearsal(request.rehearsal, request.ranks);
  const auto report = rehearsal.run_or_exit("error", programs::collective_timeout(), [&](RankContext&) { train(); });
  rehearsal.write(report);
  const auto prediction = programs::predict(report.times);
  if (request.rehearsal.is_virtual() && !report.error) std::cerr << programs::describe({prediction});
  if (!request.sweep.empty() && prediction.is_known())
    programs::add_sweep_point(request.sweep, programs::scale_point(prediction, /*samples_per_step=*/0));
  if (!request.rehearsal.report.empty()) {
    auto page = rehearsal.page(report);
    if (!request.sweep.empty()) page.scaling = programs::read_sweep(request.sweep);
    page.title = fmt::format("a program on {} simulated ranks", request.ranks);
    programs::write_page(page, request.rehearsal.report);
  }
  return programs::conclude(report, "error");
}

int run_requested(const SimRequest& request, const std::function<int()>& train) {
  programs::acknowledge(request);
  // Under sim-run the exit code says what became of the run, so a rank that returns another is an error.
  const auto checked_train = [&] {
    const int code = train();
    if (code != 0) throw Error(fmt::format("train returned {}", code));
    return programs::kSuccess;
  };
  return request.backend == "sim" ? run_simulated(request, checked_train) : run_real(request.backend, checked_train);
}

}  // namespace

int run(int argc, char** argv, const std::function<int(int, char**)>& train) {
  const auto bound_train = [&] { return train(argc, argv); };
  try {
    const auto request = programs::read_sim_request();
    return request ? run_requested(*request, bound_train) : run_real("", bound_train);
  } catch (const std::exception& error) {
    return report(error);
  }
}

}  // namespace accel

// The binding between a thread and its rank. Everything that LibTorch keeps per thread or per process and that a
// rank must own is set in RankScope.
#include "reference/state/rank_context.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <c10/core/AutogradState.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <iostream>
#include <utility>

#include "reference/core/error_text.hpp"
#include "reference/core/errors.hpp"

namespace accel {
namespace {

// The only place where a thread learns its rank. Set by RankScope.
thread_local RankContext* thread_rank = nullptr;

}  // namespace

std::unique_ptr<RankContext> make_single_rank() {
  auto context = std::make_unique<RankContext>();
  context->generator = make_generator(c10::default_rng_seed_val);  // as in a new process
  context->new_group = [](const std::vector<int>& ranks) {
    check_argument(ranks == std::vector<int>{0},
                   "new_group: a single process has only rank 0; expected no other ranks");
    return Group();
  };
  context->print = [](const std::string& text) { std::cout << text << std::flush; };
  return context;
}

RankContext& current_rank() {
  check_state(thread_rank != nullptr,
              "this thread does not run a rank; start the program with accel::run(argc, argv, train)");
  return *thread_rank;
}

// Each is removed before it runs, so that none runs twice, also after an error.
void finish_saves(RankContext& context) {
  while (!context.unfinished_saves.empty()) {
    const auto finish = std::move(context.unfinished_saves.front());
    context.unfinished_saves.erase(context.unfinished_saves.begin());
    finish();
  }
}

// LibTorch's errors often appear far from their cause. The hint names a likely cause, for example that the
// parameters of a sharded model were used outside its forward pass. After an error the other ranks may not be there to
// publish a save, but its files are written: the next run finds them.
int run_program(RankContext& context, const std::function<int()>& body) {
  const struct WaitForWriters {
    ~WaitForWriters() { context.unfinished_saves.clear(); }
    RankContext& context;
  } wait{context};
  try {
    const int code = body();
    if (code == 0) finish_saves(context);
    return code;
  } catch (const c10::Error& error) {
    throw StateError(text_of(error) + (context.hint.empty() ? "" : "\nnote: " + context.hint));
  }
}

RankContext* find_current_rank() { return thread_rank; }

std::shared_ptr<StepObserver> current_listener() { return thread_rank == nullptr ? nullptr : thread_rank->listener; }

std::shared_ptr<ProgramObserver> current_program_observer() {
  return thread_rank == nullptr ? nullptr : thread_rank->program_observer;
}

// A new thread does not inherit these settings, and a pooled thread keeps those of the previous rank. Backward
// passes must run on the rank's thread (multithreading disabled), or gradient hooks would run on threads without
// a rank. The autocast cache may still hold weights of the previous rank, so it is cleared.
RankScope::RankScope(RankContext& context)
    : generator_(context.generator),
      libc_random_(context.libc_random),
      previous_(std::exchange(thread_rank, &context)) {
  if (context.num_threads > 0) at::set_num_threads(context.num_threads);
  c10::AutogradState::set_tls_state(c10::AutogradState(
      /*grad_mode=*/true, /*inference_mode=*/false, /*fw_grad_mode=*/true, /*multithreading_enabled=*/false));
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
}

RankScope::~RankScope() { thread_rank = previous_; }

}  // namespace accel

#include "reference/data/batch_stream.hpp"

#include <exception>

#include "reference/core/errors.hpp"

namespace accel::detail {
namespace {

// Undefined: the generator of a new worker, as seeded.
at::Tensor state_of_worker(const ReadersOptions& options, std::size_t worker, bool resumed) {
  if (resumed && worker < options.generators.size() && options.generators[worker].defined())
    return options.generators[worker];
  return worker < options.starts.size() ? options.starts[worker] : at::Tensor();
}

std::shared_ptr<Workers> seeded_workers(int num_workers, const ReadersOptions& options) {
  std::vector<at::Generator> generators;
  for (int worker = 0; worker < num_workers; ++worker)
    generators.push_back(make_generator(options.base_seed + static_cast<std::uint64_t>(worker)));
  return std::make_shared<Workers>(std::move(generators), options.workers);
}

}  // namespace

// New workers are seeded, and run worker_init_fn, even where they then continue from a saved state: worker_init_fn ran
// before that state was saved. Kept workers serve only a pass that continues their random numbers.
PassWorkers::PassWorkers(int num_workers, const ReadersOptions& options, bool resumed)
    : kept_(options.kept),
      is_persistent_(options.persistent),
      finishes_(options.finish),
      uncaught_(std::uncaught_exceptions()) {
  const bool continues =
      is_persistent_ && kept_ != nullptr && *kept_ && (*kept_)->size() == num_workers && !options.starts.empty();
  workers_ = continues ? *kept_ : seeded_workers(num_workers, options);
  std::vector<at::Tensor> states;
  bool any = false;
  for (int worker = 0; worker < num_workers; ++worker)
    any |= states.emplace_back(state_of_worker(options, static_cast<std::size_t>(worker), resumed)).defined();
  if (any) {
    workers_->finish();
    workers_->set_generator_states(states);
  }
  if (kept_ != nullptr) *kept_ = workers_;
}

// An exception of the loop's body must not wait for the dataset: the next pass does, before it starts.
PassWorkers::~PassWorkers() {
  if (kept_ == nullptr || !workers_ || workers_->has_given_up()) return;
  if (is_persistent_ || finishes_) {
    if (std::uncaught_exceptions() != uncaught_) return;
    try {
      workers_->finish();
    } catch (const Error&) {  // the next pass throws: has_given_up
      return;
    }
  }
  if (!is_persistent_) kept_->reset();
}

}  // namespace accel::detail

#include "reference/data/batch_stream.hpp"

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
std::shared_ptr<Workers> start_workers(int num_workers, const ReadersOptions& options, bool resumed) {
  const bool continues = options.persistent && options.kept != nullptr && *options.kept &&
                         (*options.kept)->size() == num_workers && !options.starts.empty();
  auto workers = continues ? *options.kept : seeded_workers(num_workers, options);
  std::vector<at::Tensor> states;
  bool any = false;
  for (int worker = 0; worker < num_workers; ++worker)
    any |= states.emplace_back(state_of_worker(options, static_cast<std::size_t>(worker), resumed)).defined();
  if (any) {
    workers->finish();
    workers->set_generator_states(states);
  }
  if (options.kept != nullptr) *options.kept = workers;
  return workers;
}

}  // namespace accel::detail

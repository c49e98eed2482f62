#include "sim/backend/simulate.hpp"

#include <ATen/CPUGeneratorImpl.h>

#include <iostream>
#include <mutex>
#include <numeric>

#include "sim/backend/sim_backend.hpp"
#include "sim/engine/world.hpp"

namespace accel::sim {

void simulate(const SimulationOptions& options, const std::function<void(RankContext&)>& body) {
  verify_interposition();
  const auto world = std::make_shared<World>(WorldOptions{.num_ranks = options.num_ranks, .timeout = options.timeout});
  std::vector<int> everyone(options.num_ranks);
  std::iota(everyone.begin(), everyone.end(), 0);
  std::mutex output;

  run_ranks(*world, [&](int rank) {
    RankContext context;
    context.rank = context.local_rank = rank;
    context.world_size = context.local_world_size = options.num_ranks;
    context.backend = "sim";
    context.num_threads = 1;
    context.generator = make_generator(c10::default_rng_seed_val);
    context.world = accel::Group("world", make_process_group(world, "world", everyone, rank));
    context.new_group = [&world, rank, count = 0](const std::vector<int>& ranks) mutable {
      const auto name = fmt::format("group{}", ++count);
      world->group(name, ranks);
      const bool is_member = std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
      return is_member ? accel::Group(name, make_process_group(world, name, ranks, rank)) : accel::Group();
    };
    context.print = [&output](const std::string& text) {
      const std::lock_guard lock(output);
      std::cout << text << std::flush;
    };
    const RankScope scope(context);
    body(context);
  });
}

}  // namespace accel::sim

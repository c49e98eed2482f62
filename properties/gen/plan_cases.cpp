#include "properties/gen/plan_cases.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "properties/gen/loader_sizes.hpp"

namespace accel::testing {

std::string describe(const ShardPlanCase& one) {
  const auto& o = one.options;
  return fmt::format("rank {} of {}, length {}, batch {}, split {}, even {}, drop_last {}", one.rank, o.num_ranks,
                     o.num_samples, o.batch_size, o.split_batches, o.even_batches, o.drop_last);
}

void showValue(const ShardPlanCase& one, std::ostream& out) { out << describe(one); }

rc::Gen<ShardPlanCase> shard_plan_case() {
  return rc::gen::exec([] {
    ShardPlanCase one;
    auto& o = one.options;
    o.num_ranks = pick_ranks(8);
    o.split_batches = pick(0, 2) == 1;
    o.even_batches = pick(0, 4) > 0;
    o.drop_last = one_in(4);
    o.batch_size = pick<std::int64_t>(1, 7) * (o.split_batches ? o.num_ranks : 1);
    o.num_samples = pick_length(o.batch_size * (o.split_batches ? 1 : o.num_ranks), o.drop_last);
    one.rank = pick(0, o.num_ranks);
    return one;
  });
}

std::string describe(const programs::PlanRequest& r) {
  return fmt::format(
      "length {}, batch {}, ranks {}, iterable {}, drop_last {}, shuffle {}, seed {}, data_seed {}, epochs {}, split "
      "{}, even {}, dispatch {}, seedable {}, skip {}",
      r.length, r.batch_size, r.ranks, r.iterable, r.drop_last, r.shuffle, r.seed, r.data_seed.value_or(-1), r.epochs,
      r.split_batches, r.even_batches, r.dispatch_batches ? (*r.dispatch_batches ? "true" : "false") : "null",
      r.use_seedable_sampler, r.skip_batches);
}

bool pads(const programs::PlanRequest& request) {
  const auto step_size = request.batch_size * (request.split_batches ? 1 : request.ranks);
  return request.even_batches && request.ranks > 1 && !request.dispatches() && !request.drop_last &&
         request.length % step_size != 0;
}

rc::Gen<programs::PlanRequest> plan_request(int max_ranks) {
  return rc::gen::exec([max_ranks] {
    programs::PlanRequest r;
    r.ranks = pick_ranks(max_ranks);
    r.split_batches = pick(0, 2) == 1;
    r.batch_size = pick<std::int64_t>(1, 6) * (r.split_batches ? r.ranks : 1);
    r.drop_last = one_in(8);
    const auto step_size = r.batch_size * (r.split_batches ? 1 : r.ranks);
    r.length = pick_length(step_size, r.drop_last);
    r.iterable = one_in(5);
    r.shuffle = !r.iterable && pick(0, 2) == 1;
    r.seed = pick<std::int64_t>(0, 1000);
    r.epochs = one_in(200) ? 0 : pick(1, 4);
    r.even_batches = pick(0, 8) > 0;
    // Dispatches in one of six cases; in two of six the kind of the dataset decides.
    const auto dispatch = pick(0, 6);
    if (dispatch > 1) r.dispatch_batches = dispatch == 5;
    r.use_seedable_sampler = pick(0, 2) == 1;
    // Only the seedable sampler has a data_seed.
    if (r.use_seedable_sampler && pick(0, 2) == 1) r.data_seed = pick<std::int64_t>(0, 1000);
    // Two of three cases skip nothing, and few skip the complete epoch.
    const auto num_steps = r.drop_last ? r.length / step_size : (r.length + step_size - 1) / step_size;
    if (one_in(3)) r.skip_batches = pick<std::int64_t>(0, std::max<std::int64_t>(num_steps, 1) + (one_in(40) ? 3 : 0));
    return r;
  });
}

}  // namespace accel::testing

namespace accel::programs {

void showValue(const PlanRequest& request, std::ostream& out) { out << testing::describe(request); }

}  // namespace accel::programs

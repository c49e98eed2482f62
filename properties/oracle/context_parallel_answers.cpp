// Answers the requests of context_parallel.py: attention over a sequence that is divided over the ranks.
#include <ATen/ATen.h>

#include <map>

#include "properties/oracle/answers.hpp"
#include "reference/context_parallel/context_attention.hpp"
#include "reference/context_parallel/shard_sequence.hpp"
#include "reference/rank_local/random.hpp"

namespace accel::testing {
namespace {

std::vector<double> numbers_of(const at::Tensor& values) {
  const auto flat = values.detach().contiguous();
  return {flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel()};
}

const std::map<std::string, decltype(&parallel::ring_attention)> kFunctions{
    {"all_gather_attention", parallel::all_gather_attention},
    {"ring_attention", parallel::ring_attention},
    {"ulysses_attention", parallel::ulysses_attention}};

}  // namespace

OrderedJson context_parallel_answer(RankContext& rank, const std::string& line) {
  const auto request = Json::parse(line);
  const auto number = [&](const char* name) { return request[name].get<std::int64_t>(); };
  const bool is_causal = request["is_causal"];
  const parallel::SequencePlan plan(
      {.length = number("length"),
       .num_ranks = rank.world_size,
       .order = is_causal ? parallel::SequenceOrder::kZigzag : parallel::SequenceOrder::kContiguous});
  auto generator = make_generator(request["seed"].get<std::uint64_t>());
  std::vector<at::Tensor> parts;
  for (int i = 0; i < 4; ++i) {
    const auto complete =
        at::randn({number("batch"), number("heads"), plan.length(), number("width")}, generator, at::kDouble);
    parts.push_back(parallel::shard_sequence(complete, 2, plan, rank.rank).set_requires_grad(i < 3));
  }
  const auto output = kFunctions.at(request["function"])(parts[0], parts[1], parts[2], plan, rank.world,
                                                         {.is_causal = is_causal, .scale = request["scale"]});
  output.backward(parts[3]);
  return {{"positions", plan.positions(rank.rank)},
          {"output", numbers_of(output)},
          {"queries", numbers_of(parts[0].grad())},
          {"keys", numbers_of(parts[1].grad())},
          {"values", numbers_of(parts[2].grad())}};
}

}  // namespace accel::testing

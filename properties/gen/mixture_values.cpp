#include "properties/gen/mixture_values.hpp"

#include <ATen/ATen.h>

#include "reference/experts/mixture_of_experts.hpp"
#include "tests/support/cut_values.hpp"

namespace accel::testing {
namespace {

using Json = nlohmann::json;
using namespace accel::parallel;

at::Tensor numbers_of(const Json& json, at::IntArrayRef sizes) {
  return at::tensor(json.get<std::vector<float>>()).view(sizes);
}

Json json_of_numbers(const at::Tensor& tensor) {
  const auto flat = tensor.detach().contiguous();
  return std::vector<float>(flat.const_data_ptr<float>(), flat.const_data_ptr<float>() + flat.numel());
}

// Tokens are divided over the ranks as evenly as possible; a rank may have none.
at::Tensor tokens_of_rank(const at::Tensor& all, const RankContext& rank) {
  const auto begin = all.size(0) * rank.rank / rank.world_size, end = all.size(0) * (rank.rank + 1) / rank.world_size;
  return all.slice(0, begin, end).clone();
}

}  // namespace

Json mixture_values(RankContext& rank, const Json& request) {
  const DeviceMesh mesh(rank, {.ep_size = rank.world_size});
  const std::int64_t width = request["width"], num_tokens = request["num_tokens"];
  MixtureOfExperts mixture(MixtureOfExpertsOptions{.width = width,
                                                   .inner = request["inner"],
                                                   .num_experts = request["num_experts"],
                                                   .top_k = request["top_k"],
                                                   .normalize_gates = true,
                                                   .aux_loss_weight = 1},
                           mesh);
  fill_with_parts(*mixture, [&](const std::string& name, const std::vector<std::int64_t>& sizes) {
    return numbers_of(request["parameters"][name], sizes);
  });
  const auto cuts = parameter_cuts(*mixture);
  auto values = tokens_of_rank(numbers_of(request["values"], {num_tokens, width}), rank).requires_grad_();
  const auto factors = tokens_of_rank(numbers_of(request["factors"], {num_tokens, width}), rank);
  const auto output = mixture->forward(values);
  ((output.values * factors).sum() * rank.world_size + output.auxiliary_loss).backward();
  Json answer{{"values", json_of_numbers(output.values)},
              {"auxiliary_loss", json_of_numbers(output.auxiliary_loss)},
              {"values_gradient", json_of_numbers(values.grad() / rank.world_size)}};
  for (const auto& item : mixture->named_parameters()) {
    const auto cut = cuts.find(item.key());
    auto gradient = item.value().grad().clone();
    if (cut == cuts.end()) rank.world.all_reduce(gradient, ReduceOp::kMean).wait();
    answer["gradients"][item.key()] = json_of_numbers(cut == cuts.end() ? gradient : cut->second.whole_of(gradient));
  }
  return answer;
}

}  // namespace accel::testing

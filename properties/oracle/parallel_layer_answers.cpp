// Answers the requests of parallel_layers.py: layers of a gpt that are divided over the ranks, which must have the bits
// of torch.distributed.tensor.parallel.
#include <ATen/ops/randn.h>
#include <c10/core/GradMode.h>

#include "properties/oracle/answers.hpp"
#include "reference/files/sha256.hpp"
#include "reference/files/stored_tensor.hpp"
#include "reference/models/gpt_layers.hpp"
#include "reference/modules/parameter_cut.hpp"
#include "reference/rank_local/random.hpp"
#include "reference/tensor_parallel/operators.hpp"

namespace accel::testing {
namespace {

std::string hash_of(const at::Tensor& tensor) {
  const auto bytes = bytes_of(contiguous_on_cpu(tensor.detach()));
  Sha256 hash;
  hash.update(bytes.data(), bytes.size());
  return hash.hex();
}

models::GptOptions divided_layer_options(const Json& request) {
  const auto& options = request["options"];
  return {.heads = options["heads"],
          .width = options["width"],
          .bias = false,
          .positions = "rotary",
          .feed_forward = options["feed_forward"],
          .feed_forward_width = options["feed_forward_width"].get<std::int64_t>(),
          .key_value_heads = options["key_value_heads"].get<std::int64_t>(),
          .head_width = options["head_width"].get<std::int64_t>(),
          .dtype = request["dtype"],
          .sequence_parallel = request["sequence_parallel"]};
}

void draw_complete_weights(torch::nn::Module& layer, at::ScalarType type) {
  const c10::NoGradGuard no_grad;
  const auto cuts = parallel::parameter_cuts(layer);
  for (auto& item : layer.named_parameters()) {
    const auto& cut = cuts.at(item.key());
    item.value().copy_(cut.part_of(at::randn(cut.whole_sizes(item.value()), type) * 0.3));
  }
}

}  // namespace

OrderedJson parallel_layer_answer(RankContext& rank, const std::string& line) {
  const auto request = Json::parse(line);
  const auto options = divided_layer_options(request);
  const auto type = options.dtype == "float64" ? at::kDouble : at::kFloat;
  const DeviceMesh mesh(rank, {.tp_size = rank.world.size()});
  std::shared_ptr<models::AttentionLayer> attention;
  std::shared_ptr<models::FeedForwardLayer> feed_forward;
  const bool attends = request["layer"] == "attention";
  if (attends) {
    attention = models::make_attention(options, mesh);
  } else {
    feed_forward = models::make_feed_forward(options, mesh);
  }
  auto& layer = attends ? static_cast<torch::nn::Module&>(*attention) : *feed_forward;
  layer.to(type);
  const GeneratorScope scope(make_generator(request["seed"].get<std::uint64_t>()));
  draw_complete_weights(layer, type);
  const std::int64_t batch = request["batch"], length = request["length"];
  auto values = at::randn({batch, length, options.width}, type), factors = at::randn_like(values);
  models::Rotation rotation;
  for (int part = 0; part < 2; ++part) rotation.push_back(at::randn({1, length, *options.head_width}, type));
  if (options.sequence_parallel) {
    values = parallel::own_part(values, 1, mesh["tp"]);
    factors = parallel::own_part(factors, 1, mesh["tp"]);
  }
  values.requires_grad_();
  const auto output =
      attends ? attention->forward({values}, rotation).local : feed_forward->forward({values}).values.local;
  (output * factors).sum().backward();
  OrderedJson gradients;
  for (const auto& item : layer.named_parameters()) gradients[item.key()] = hash_of(item.value().grad());
  // parallel_layers.py adds 0, which waits for a collective, and makes +0 of -0.
  return {{"output", hash_of(output + 0)}, {"input_gradient", hash_of(values.grad() + 0)}, {"gradients", gradients}};
}

}  // namespace accel::testing

// Answers the requests of models.py: networks of torchvision and transformers, which must have Python's bits.
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <c10/core/GradMode.h>
#include <torch/optim/sgd.h>

#include "properties/oracle/answers.hpp"
#include "reference/checkpoint/module_state.hpp"
#include "reference/files/sha256.hpp"
#include "reference/models/gpt.hpp"
#include "reference/models/resnet.hpp"
#include "reference/offload/empty_weights.hpp"
#include "reference/offload/load_checkpoint.hpp"
#include "reference/rank_local/random.hpp"

namespace accel::testing {
namespace {

std::string digest(const at::Tensor& tensor) {
  const auto bytes = bytes_of(contiguous_on_cpu(tensor.detach()));
  Sha256 hash;
  hash.update(bytes.data(), bytes.size());
  return hash.hex();
}

Json digests(const NamedTensors& tensors) {
  Json result = Json::object();
  for (const auto& [name, tensor] : tensors) result[name] = digest(tensor);
  return result;
}

Json resnet_model_answer(const Json& request) {
  const GeneratorScope scope(make_generator(request["seed"].get<std::uint64_t>()));
  const auto& options = request["options"];
  const models::ResNetOptions chosen{.width = options["width"],
                                     .num_classes = options["num_classes"],
                                     .small_images = options.value("small_images", false)};
  const auto model = request["resnet"] == "resnet18" ? models::resnet18(chosen) : models::resnet50(chosen);
  Json result{{"weights", digests(checkpoint::state_dict_of(*model))}};
  const std::int64_t batch = request["batch"], size = request["size"];
  const auto images = at::rand({batch, 3, size, size});
  const auto targets = at::randint(chosen.num_classes, {batch}, at::kLong);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  result["logits"] = digest(model->forward(images));
  result["losses"] = Json::array();
  for (int step = 0; step < request["steps"]; ++step) {
    const auto loss = at::cross_entropy_loss(model->forward(images), targets);
    result["losses"].push_back(loss.item<double>());
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
  }
  result["trained"] = digests(checkpoint::state_dict_of(*model));
  return result;
}

Json initial_llama_answer(const Json& request) {
  const GeneratorScope scope(make_generator(request["seed"].get<std::uint64_t>()));
  const auto model = models::gpt(models::read_llama_config(request["config"]));
  return {{"weights", digests(checkpoint::state_dict_of(*model))}, {"next", digest(at::rand({3}))}};
}

Json loaded_llama_answer(const Json& request) {
  const std::string folder = request["llama"];
  const auto options = models::read_llama_config(folder);
  const auto model = init_empty_weights([&] { return models::gpt(options); });
  load_checkpoint_in_model(*model, folder, {.strict = true});
  const GeneratorScope scope(make_generator(request["seed"].get<std::uint64_t>()));
  const std::int64_t batch = request["batch"], length = request["length"];
  const auto tokens = at::randint(options.vocab_size, {batch, length}, at::kLong);
  Json result;
  {
    const c10::NoGradGuard no_grad;
    result["logits"] = digest(model->forward(tokens));
  }
  if (length == 1) return result;
  // Targets of -100 do not count.
  const auto loss = model->forward(tokens, at::cat({tokens.slice(1, 1), at::full({batch, 1}, -100, at::kLong)}, 1));
  loss.backward();
  NamedTensors gradients;
  for (const auto& [name, parameter] : checkpoint::state_dict_of(*model))
    gradients.emplace_back(name, parameter.grad());
  result["loss"] = loss.item<double>();
  result["gradients"] = digests(gradients);
  return result;
}

}  // namespace

Json model_answer(const Json& request) {
  if (request.contains("resnet")) return resnet_model_answer(request);
  return request.contains("config") ? initial_llama_answer(request) : loaded_llama_answer(request);
}

}  // namespace accel::testing

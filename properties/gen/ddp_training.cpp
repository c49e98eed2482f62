#include "properties/gen/ddp_training.hpp"

#include <nlohmann/json.hpp>

#include "reference/accelerator/accelerator.hpp"
#include "reference/accelerator/local_sgd.hpp"
#include "reference/core/errors.hpp"
#include "reference/files/sha256.hpp"
#include "reference/state/rng_sync.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing {
namespace {

namespace nn = torch::nn;

// Computes what Python's Linear does. LibTorch's C++ Linear calls addmm(bias, x, weight.t()). Under autocast its
// gradients arrive in another order, so buckets hold them in another order, and a ring sum that is rounded at each
// hop then has other bits.
at::Tensor linear(const nn::Linear& layer, const at::Tensor& x) { return at::linear(x, layer->weight, layer->bias); }

struct NetImpl : nn::Module {
  explicit NetImpl(std::int64_t hidden)
      // The modules are registered in the order of properties/oracle/ddp_training.py: it decides bucket order and
      // draws.
      : first(register_module("first", nn::Linear(20, hidden))),
        norm(register_module("norm", nn::BatchNorm1d(hidden))),
        second(register_module("second", nn::Linear(hidden, hidden))),
        third(register_module("third", nn::Linear(hidden, hidden))),
        extra(register_module("extra", nn::Linear(20, 3))),
        last(register_module("last", nn::Linear(hidden, 3))) {}

  std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& x, bool uses_extra) {
    auto y = at::tanh(linear(second, norm(at::tanh(linear(first, x)))));
    y = linear(last, at::tanh(linear(third, y)));
    // `extra` is the layer that some requests leave unused, which is what find_unused_parameters is about.
    return {y, uses_extra ? linear(extra, x) : at::zeros({1})};
  }
  nn::Linear first;
  nn::BatchNorm1d norm;
  nn::Linear second, third, extra, last;
};
TORCH_MODULE(Net);

// Hashes parameters and buffers, because buffers are synchronized by a different path (broadcast_buffers).
std::string state_of(const NetImpl& net) {
  Sha256 hash;
  const auto add = [&](const at::Tensor& tensor) {
    const auto data = tensor.detach().contiguous();
    hash.update(data.const_data_ptr(), data.nbytes());
  };
  for (const auto& parameter : net.parameters()) add(parameter);
  for (const auto& buffer : net.buffers()) add(buffer);
  return hash.hex();
}

template <typename T>
void read(const nlohmann::json& object, const char* name, T& value) {
  if (const auto item = object.find(name); item != object.end()) value = item->get<T>();
}

PowerSGDOptions parse_power_sgd(const nlohmann::json& object) {
  PowerSGDOptions options;
  read(object, "matrix_approximation_rank", options.matrix_approximation_rank);
  read(object, "start_powerSGD_iter", options.start_powerSGD_iter);
  read(object, "min_compression_rate", options.min_compression_rate);
  read(object, "use_error_feedback", options.use_error_feedback);
  read(object, "warm_start", options.warm_start);
  read(object, "orthogonalization_epsilon", options.orthogonalization_epsilon);
  read(object, "random_seed", options.random_seed);
  read(object, "batch_tensors_with_same_shape", options.batch_tensors_with_same_shape);
  return options;
}

DistributedDataParallelKwargs parse_kwargs(const nlohmann::json& object) {
  DistributedDataParallelKwargs kwargs;
  read(object, "broadcast_buffers", kwargs.broadcast_buffers);
  if (object.contains("bucket_cap_mb")) kwargs.bucket_cap_mb = object["bucket_cap_mb"].get<int>();
  read(object, "find_unused_parameters", kwargs.find_unused_parameters);
  if (const auto views = object.find("gradient_as_bucket_view"); views != object.end())
    kwargs.gradient_as_bucket_view = views->get<bool>();
  read(object, "static_graph", kwargs.static_graph);
  read(object, "comm_hook", kwargs.comm_hook);
  read(object, "comm_wrapper", kwargs.comm_wrapper);
  if (object.contains("comm_state_option")) kwargs.comm_state_option = parse_power_sgd(object["comm_state_option"]);
  return kwargs;
}

}  // namespace

DdpTrainingRequest parse_ddp_training_request(const std::string& json) {
  const auto object = nlohmann::json::parse(json);
  DdpTrainingRequest request;
  read(object, "seed", request.seed);
  read(object, "hidden", request.hidden);
  read(object, "steps", request.steps);
  read(object, "accumulation_steps", request.accumulation_steps);
  read(object, "local_sgd_steps", request.local_sgd_steps);
  read(object, "uneven", request.uneven);
  read(object, "unused", request.unused);
  read(object, "mixed_precision", request.mixed_precision);
  if (object.contains("kwargs")) request.kwargs = parse_kwargs(object["kwargs"]);
  return request;
}

// Every statement has its counterpart in properties/oracle/ddp_training.py, in the same order: both consume the
// same random numbers.
std::vector<DdpTrainingStep> train_ddp(RankContext& rank, const DdpTrainingRequest& request) {
  Accelerator accelerator({.mixed_precision = request.mixed_precision,
                           .gradient_accumulation_steps = request.accumulation_steps,
                           .ddp_kwargs = request.kwargs},
                          rank);
  set_seed(request.seed);
  Net net(request.hidden);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  // The model starts equal on all ranks; from here on each rank draws its own data.
  set_seed(request.seed, {.device_specific = true});

  std::vector<DdpTrainingStep> steps;
  const auto train_step = [&](int step) {
    const auto x = at::randn({8, 20}), target = at::randn({8, 3});
    auto window = accelerator.accumulate(model);
    const bool uses_extra =
        request.unused == "no" || request.unused == "in_loss" || (request.unused == "at_times" && step % 2 == 0);
    const auto [y, extra] = model(x, uses_extra);
    auto loss = (y - target).square().mean();
    if (uses_extra && request.unused != "in_loss") loss = loss + extra.square().mean();
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    // The state is hashed after every step, so that a comparison finds the first step that differs.
    steps.push_back({.loss = loss.item<double>(), .state_sha256 = state_of(*net)});
  };
  const int num_steps = request.uneven ? std::max(1, request.steps - rank.rank) : request.steps;
  const auto train = [&](auto&& after_step) {
    for (int step = 0; step < num_steps; ++step) {
      train_step(step);
      after_step();
    }
  };
  if (request.local_sgd_steps > 0) {
    local_sgd(accelerator, model, {.local_sgd_steps = request.local_sgd_steps},
              [&](LocalSGD& local_sgd) { train([&] { local_sgd.step(); }); });
  } else if (request.uneven) {
    accelerator.join_uneven_inputs({model}, {.even_batches = false}, [&] { train([] {}); });
  } else {
    train([] {});
  }
  steps.push_back({.state_sha256 = state_of(*net)});
  return steps;
}

}  // namespace accel::testing

#include "properties/gen/optimizer_runs.hpp"

#include <yaml-cpp/yaml.h>

#include "properties/gen/value_json.hpp"
#include "reference/core/errors.hpp"
#include "reference/optim/optimizers/optimizer_state.hpp"
#include "sim/programs/experiments/optimizer_config.hpp"
#include "tests/support/outermost_operators.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing {
namespace {

using Json = nlohmann::json;
using programs::OptimizerConfig;

// A parameter without a gradient in the first steps gets its state later than the others, a case that fused
// optimizers get wrong if they share one step counter.
constexpr int kLateStep = 5;
// Every how many steps an embedding selects no rows.
constexpr int kEmptyStep = 4;

// Returns numbers of a formula that are exact in float32, so that both languages start from equal bits.
at::Tensor numbers(at::IntArrayRef shape, std::int64_t offset, std::int64_t factor) {
  const auto index = at::arange(c10::multiply_integers(shape), at::kLong);
  return (((index * index * 13 + index * 17 + offset).remainder(2003) - 1001).to(at::kDouble) /
          static_cast<double>(factor))
      .reshape(shape);
}

// Reads the options with the experiment files' reader, so the request format needs no parser of its own.
OptimizerConfig config_of(const Json& json, bool fused) {
  YamlProblems problems("request");
  auto config = programs::read_optimizer(YamlReader(YAML::Load(json.dump()), "", problems));
  problems.throw_if_any();
  std::visit(
      [&](auto& options) {
        if constexpr (requires { options.fused; }) options.fused = fused;
      },
      config.options);
  return config;
}

void add_group(torch::optim::Optimizer& optimizer, const OptimizerConfig& config, std::vector<at::Tensor> params) {
  std::visit(
      [&]<typename Options>(const Options& options) {
        if (auto* ours = dynamic_cast<optim::MultiTensorOptimizer<Options>*>(&optimizer)) {
          ours->add_param_group(std::move(params), options);
          return;
        }
        // Only SGD of LibTorch has a second group with options of its own type here.
        if constexpr (std::same_as<Options, optim::SGDOptions>) {
          auto plain = std::make_unique<torch::optim::SGDOptions>(options.lr);
          options.assign_to(*plain);
          optimizer.add_param_group(torch::optim::OptimizerParamGroup(std::move(params), std::move(plain)));
        }
      },
      config.options);
}

// LibTorch's own LBFGS, whose rounding differs from Python's. Only its state dict is compared.
std::unique_ptr<torch::optim::Optimizer> lbfgs_of(const Json& json, const std::vector<at::Tensor>& params) {
  torch::optim::LBFGSOptions options(json["lr"].get<double>());
  options.max_iter(json["max_iter"]).history_size(json["history_size"]);
  if (json.contains("line_search_fn")) options.line_search_fn(json["line_search_fn"].get<std::string>());
  return std::make_unique<torch::optim::LBFGS>(params, options);
}

struct Run {
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  std::vector<at::Tensor> params;
};

Run start(const Json& request) {
  Run run;
  const auto dtype = tensor_of({{"dtype", request["dtype"]}, {"shape", {0}}, {"hex", ""}}).scalar_type();
  const std::int64_t seed = request["seed"];
  for (const auto& group : request["groups"]) {
    std::vector<at::Tensor> params;
    for (const auto& shape : group["shapes"]) {
      const auto number = static_cast<std::int64_t>(run.params.size());
      params.push_back(
          numbers(shape.get<std::vector<std::int64_t>>(), seed * 17 + number * 7919, 512).to(dtype).requires_grad_());
      run.params.push_back(params.back());
    }
    if (group["optimizer"]["name"] == "lbfgs") {
      run.optimizer = lbfgs_of(group["optimizer"], params);
      continue;
    }
    const auto config = config_of(group["optimizer"], request.value("fused", true));
    if (run.optimizer == nullptr) {
      run.optimizer = programs::build_optimizer(config, params);
    } else {
      add_group(*run.optimizer, config, params);
    }
  }
  return run;
}

// The gradient of an embedding whose rows `param` has: some rows twice, and none in some steps.
void take_sparse_gradient(at::Tensor& param, std::int64_t step, std::int64_t offset) {
  const auto index = at::arange(step % kEmptyStep == kEmptyStep - 1 ? 0 : 5, at::kLong);
  const auto rows = (index * index + step).remainder(param.size(0));
  param.mutable_grad().reset();
  const auto selected = at::embedding(param, rows, /*padding_idx=*/-1, /*scale_grad_by_freq=*/false, /*sparse=*/true);
  (selected * numbers(selected.sizes(), offset, 256).to(param.scalar_type())).sum().backward();
}

// Each parameter gets its own gradients, from a formula again: a model would add its own rounding.
void take_gradients(Run& run, const Json& request, std::int64_t step) {
  const std::int64_t seed = request["seed"];
  const bool is_sparse = request["groups"][0]["optimizer"]["name"] == "sparse_adam";
  for (std::size_t number = 0; number < run.params.size(); ++number) {
    auto& param = run.params[number];
    if (step < kLateStep && !request["late"].is_null() && request["late"] == number) continue;
    const auto offset = seed * 31 + step * 7919 + static_cast<std::int64_t>(number) * 104729;
    if (is_sparse) {
      take_sparse_gradient(param, step, offset);
    } else {
      param.mutable_grad() = numbers(param.sizes(), offset, 256).to(param.scalar_type());
    }
  }
}

void step(Run& run, const Json& request, std::int64_t step) {
  take_gradients(run, request, step);
  run.optimizer->step();
}

}  // namespace

// Two warm-up steps more than kLateStep create all state, so only the operators of a regular step are recorded.
Json operators_of_step(const Json& request) {
  auto run = start(request);
  const int first_with_all_state = kLateStep + 1;
  for (int number = 0; number < first_with_all_state; ++number) step(run, request, number);
  take_gradients(run, request, first_with_all_state);
  const OutermostOperators operators;
  run.optimizer->step();
  return OutermostOperators::names();
}

Json run_optimizer(const Json& request) {
  auto run = start(request);
  std::int64_t first = 0;
  // Continues from the state that Python saved, which also tests load_state_dict against Python's layout.
  if (!request["start"].is_null()) {
    const c10::NoGradGuard no_grad;
    const auto& saved = request["start"];
    first = saved["step"];
    for (std::size_t number = 0; number < run.params.size(); ++number)
      run.params[number].copy_(tensor_of(saved["parameters"][number]));
    optim::load_state_dict(*run.optimizer, value_of(saved["state_dict"]));
  }
  for (auto number = first; number < request["steps"].get<std::int64_t>(); ++number) step(run, request, number);
  Json answer{{"parameters", Json::array()}, {"state_dict", json_of(optim::state_dict(*run.optimizer))}};
  for (const auto& param : run.params) answer["parameters"].push_back(json_of(param));
  return answer;
}

}  // namespace accel::testing

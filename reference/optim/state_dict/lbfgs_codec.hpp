#pragma once

#include <torch/optim/lbfgs.h>

#include "reference/optim/state_dict/state_dict_codec.hpp"

namespace accel::optim {

/// State dicts of LibTorch's LBFGS. Its state belongs to all parameters together and is stored under the first, as in
/// Python.
///
/// Thread rule: borrows the optimizer. Source: torch/optim/lbfgs.py.
class LbfgsCodec : public StateDictCodec {
 public:
  explicit LbfgsCodec(const torch::optim::LBFGS& optimizer);
  [[nodiscard]] Value::Dict write_options(const torch::optim::OptimizerOptions& options) const override;
  [[nodiscard]] Value::Dict write_state(const torch::optim::OptimizerParamState& state) const override;
  [[nodiscard]] std::unique_ptr<torch::optim::OptimizerOptions> read_options(
      const Value::Dict& dict, const torch::optim::OptimizerOptions& now, const std::string& place,
      StateDictProblems& problems) const override;
  [[nodiscard]] std::unique_ptr<torch::optim::OptimizerParamState> read_state(
      const Value::Dict& dict, const at::Tensor& param, const torch::optim::OptimizerOptions& options,
      const std::string& place, StateDictProblems& problems) const override;

 private:
  const torch::optim::LBFGS* optimizer_;
  std::int64_t numel_;  // of all parameters
};

}  // namespace accel::optim

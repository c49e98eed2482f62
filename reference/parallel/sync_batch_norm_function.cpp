#include "reference/parallel/sync_batch_norm_function.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <optional>

#include "reference/parallel/batch_statistics.hpp"
#include "reference/state/rank_context.hpp"

namespace accel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// A context's memory holds values of TorchScript.
struct GroupHolder : torch::CustomClassHolder {
  GroupHolder(Group group_of_ranks, std::shared_ptr<StepListener> listener_of_rank)
      : group(std::move(group_of_ranks)), listener(std::move(listener_of_rank)) {}
  Group group;
  std::shared_ptr<StepListener> listener;
};

at::Tensor laid_out(const at::Tensor& tensor) {
  const bool is_channels_last =
      tensor.is_contiguous(at::MemoryFormat::ChannelsLast) || tensor.is_contiguous(at::MemoryFormat::ChannelsLast3d);
  return is_channels_last ? tensor : tensor.contiguous();
}

struct SyncBatchNormFunction : torch::autograd::Function<SyncBatchNormFunction> {
  // An undefined tensor travels as none.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& given,
                            const std::optional<at::Tensor>& given_weight, const std::optional<at::Tensor>& given_bias,
                            const SyncBatchNormArguments& arguments, const Group& group) {
    const auto input = laid_out(given), weight = given_weight.value_or(at::Tensor()),
               bias = given_bias.value_or(at::Tensor());
    const auto all = group.all_gather(local_statistics(input, arguments.eps).unsqueeze(0));
    const auto statistics = global_statistics(all, input, arguments);
    context->save_for_backward({input, weight, statistics.mean, statistics.invstd, statistics.counts});
    context->saved_data["group"] =
        c10::IValue::make_capsule(c10::make_intrusive<GroupHolder>(group, current_listener()));
    return normalized(input, weight, bias, statistics, arguments.eps);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grad_outputs) {
    const auto saved = context->get_saved_variables();
    const auto &input = saved[0], &weight = saved[1];
    const GlobalStatistics statistics{.mean = saved[2], .invstd = saved[3], .counts = saved[4]};
    const auto grad_output = laid_out(grad_outputs[0]);
    const auto local = local_gradients(grad_output, input, weight, statistics);
    at::Tensor of_input;
    if (context->needs_input_grad(0)) {
      const auto capsule = context->saved_data["group"].toCapsule();
      const auto& holder = static_cast<const GroupHolder&>(*capsule);
      const PhaseScope phase(holder.listener.get(), "batch_norm");  // these are no gradients of parameters
      auto sums = at::cat({local.sum_dy, local.sum_dy_xmu});
      holder.group.all_reduce(sums).wait();
      const auto of_all = sums.chunk(2);
      of_input = input_gradient(grad_output, input, weight, statistics, of_all[0], of_all[1]);
    }
    const auto of_parameter = [&](std::size_t place, const at::Tensor& gradient) {
      return weight.defined() && context->needs_input_grad(place) ? gradient.to(weight.scalar_type()) : at::Tensor();
    };
    return {of_input, of_parameter(1, local.weight), of_parameter(2, local.bias), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor sync_batch_norm(const at::Tensor& input, const SyncBatchNormArguments& arguments, const Group& group) {
  const auto optional = [](const at::Tensor& tensor) {
    return tensor.defined() ? std::optional(tensor) : std::nullopt;
  };
  return SyncBatchNormFunction::apply(input, optional(arguments.weight), optional(arguments.bias), arguments, group);
}

}  // namespace accel

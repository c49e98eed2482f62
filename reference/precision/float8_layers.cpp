#include "reference/precision/float8_layers.hpp"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/linear.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>
#include <torch/nn/modules/linear.h>

#include <limits>
#include <optional>
#include <utility>

#include "reference/core/errors.hpp"
#include "reference/rank_local/random.hpp"

// float8 matrix products as in torchao, and the replacement of torch::nn::LinearImpl::forward that uses them. Scales,
// clamping, padding and the order of operands follow torchao 0.18 so that losses agree with Python's.
namespace accel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::ScalarType scalar_type(Float8Type type) {
  return type == Float8Type::kE4m3 ? at::kFloat8_e4m3fn : at::kFloat8_e5m2;
}
double largest(Float8Type type) {
  return type == Float8Type::kE4m3 ? static_cast<double>(std::numeric_limits<c10::Float8_e4m3fn>::max())
                                   : static_cast<double>(std::numeric_limits<c10::Float8_e5m2>::max());
}

// One operand of a product. Without a type it stays in its own precision.
struct Operand {
  std::optional<Float8Type> type;
  bool is_axiswise = false;

  friend bool operator==(const Operand&, const Operand&) = default;
};
struct Product {
  Operand left, right;
  bool use_fast_accum;
};

// Default types as in torchao: activations and weights in e4m3, gradients in e5m2, which has more range.
Operand operand(const CastConfig& cast, Float8Type fallback) {
  if (cast.scaling_type == ScalingType::kDisabled) return {};
  return {cast.target_dtype.value_or(fallback), cast.scaling_granularity == ScalingGranularity::kAxiswise};
}

Product output_product(const Float8LinearConfig& config) {
  return {operand(config.cast_config_input, Float8Type::kE4m3), operand(config.cast_config_weight, Float8Type::kE4m3),
          config.gemm_config_output.use_fast_accum};
}
Product grad_input_product(const Float8LinearConfig& config) {
  return {operand(config.cast_config_grad_output, Float8Type::kE5m2),
          operand(config.cast_config_weight_for_grad_input.value_or(config.cast_config_weight), Float8Type::kE4m3),
          config.gemm_config_grad_input.use_fast_accum};
}
Product grad_weight_product(const Float8LinearConfig& config) {
  return {operand(config.cast_config_grad_output_for_grad_weight.value_or(config.cast_config_grad_output),
                  Float8Type::kE5m2),
          operand(config.cast_config_input_for_grad_weight.value_or(config.cast_config_input), Float8Type::kE4m3),
          config.gemm_config_grad_weight.use_fast_accum};
}

struct Scaled {
  at::Tensor values;  ///< float8
  at::Tensor scale;  ///< float32: values = scale * matrix; shape (), or, axiswise, of size 1 along the summed dimension
};

// Scales so that the largest magnitude becomes the largest float8 value. The lower bound on amax avoids dividing by 0
// for a matrix of zeros; the division is in float64, as in torchao, so that scales have the same bits. Source:
// torchao/float8/float8_utils.py, tensor_to_scale, to_fp8_saturated.
Scaled scaled(const at::Tensor& matrix, const Operand& operand, int summed_dimension, bool round_to_power_of_2) {
  constexpr double kSmallestAmax = 1e-12;
  const auto magnitudes = matrix.abs();
  const auto amax = operand.is_axiswise ? magnitudes.amax(summed_dimension, /*keepdim=*/true) : magnitudes.max();
  auto scale = (largest(*operand.type) / amax.to(at::kDouble).clamp_min(kSmallestAmax)).to(at::kFloat);
  if (round_to_power_of_2) scale = scale.log2().floor().exp2();
  // Clamped, because a cast to float8 does not saturate: values that round above the range become NaN.
  const auto values = (matrix.to(at::kFloat) * scale)
                          .clamp(-largest(*operand.type), largest(*operand.type))
                          .to(scalar_type(*operand.type));
  return {values, scale};
}

// Pads with zeros, which do not change the product, to the multiple of 16 that _scaled_mm requires. Source:
// torchao/float8/float8_utils.py, pad_tensor_for_matmul.
at::Tensor padded(const at::Tensor& matrix, int dimension) {
  constexpr std::int64_t kAlignment = 16;
  const auto missing = (kAlignment - matrix.size(dimension) % kAlignment) % kAlignment;
  if (missing == 0) return matrix;
  return dimension == 1 ? at::constant_pad_nd(matrix, {0, missing, 0, 0})
                        : at::constant_pad_nd(matrix, {0, 0, 0, missing});
}

bool is_row_major(const at::Tensor& matrix) { return matrix.stride(0) > matrix.stride(1) && matrix.stride(1) == 1; }

// _scaled_mm requires a row-major left and a column-major right operand. Source: torchao/float8/float8_ops.py,
// preprocess_addmm and addmm_float8_unwrapped.
at::Tensor product_in_float8(Scaled left, Scaled right, const Product& product, const Float8LinearConfig& config,
                             at::ScalarType dtype) {
  if (config.pad_inner_dim) {
    left.values = padded(left.values, 1);
    right.values = padded(right.values, 0);
  }
  if (!is_row_major(left.values)) left.values = left.values.contiguous();
  if (is_row_major(right.values)) right.values = right.values.t().contiguous().t();
  const bool is_axiswise = product.left.is_axiswise || product.right.is_axiswise;
  if (is_axiswise && !product.left.is_axiswise) left.scale = left.scale.expand({left.values.size(0), 1});
  if (is_axiswise && !product.right.is_axiswise) right.scale = right.scale.expand({1, right.values.size(1)});
  auto of_left = left.scale.reciprocal(), of_right = right.scale.reciprocal();
  // CUTLASS's kernel for axiswise scales is slow without fast accumulation, and the CPU has no such kernel. There the
  // product is computed with scales of 1, and the actual scales are applied afterwards.
  const bool scales_behind = is_axiswise && (!product.use_fast_accum || left.values.is_cpu());
  std::optional<at::Tensor> behind;
  if (scales_behind) {
    behind = of_left * of_right;
    of_left = of_right = at::ones({}, of_left.options());
  }
  // Kernels for axiswise scales only write bfloat16.
  const bool has_no_such_output = is_axiswise && (dtype == at::kHalf || dtype == at::kFloat);
  auto output = at::_scaled_mm(left.values, right.values, of_left.contiguous(), of_right.contiguous(), {}, {},
                               has_no_such_output ? at::kBFloat16 : dtype, product.use_fast_accum);
  if (behind) output *= *behind;
  return output.to(dtype);
}

// Products left (M, K) * right (K, N), each operand scaled along the summed dimension K.
class Multiplication {
 public:
  Multiplication(const Float8LinearConfig& config, at::ScalarType dtype) : config_(config), dtype_(dtype) {}

  [[nodiscard]] std::optional<Scaled> left(const at::Tensor& matrix, const Operand& operand) const {
    return scaled_operand(matrix, operand, 1);
  }
  [[nodiscard]] std::optional<Scaled> right(const at::Tensor& matrix, const Operand& operand) const {
    return scaled_operand(matrix, operand, 0);
  }

  [[nodiscard]] at::Tensor product(const Product& product, const at::Tensor& left_matrix,
                                   const at::Tensor& right_matrix) const {
    return this->product(product, left_matrix, left(left_matrix, product.left), right_matrix);
  }
  [[nodiscard]] at::Tensor product(const Product& product, const at::Tensor& left_matrix,
                                   const std::optional<Scaled>& scaled_left, const at::Tensor& right_matrix) const {
    // The operands have their final dtypes; autocast would cast the product's inputs again.
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    if (!scaled_left) return at::mm(left_matrix.to(dtype_), right_matrix.to(dtype_));
    const auto scaled_right = *right(right_matrix, product.right);
    // Emulation rounds to float8 but multiplies in float32, for devices without float8 kernels.
    if (!config_.emulate) return product_in_float8(*scaled_left, scaled_right, product, config_, dtype_);
    return at::mm(scaled_left->values.to(at::kFloat) / scaled_left->scale,
                  scaled_right.values.to(at::kFloat) / scaled_right.scale)
        .to(dtype_);
  }

 private:
  [[nodiscard]] std::optional<Scaled> scaled_operand(const at::Tensor& matrix, const Operand& operand,
                                                     int summed_dimension) const {
    return operand.type ? std::optional(scaled(matrix, operand, summed_dimension, config_.round_scales_to_power_of_2))
                        : std::nullopt;
  }

  const Float8LinearConfig& config_;
  at::ScalarType dtype_;
};

at::Tensor rows_of(const at::Tensor& tensor) { return tensor.reshape({-1, tensor.size(-1)}); }
at::Tensor in_shape_of(const at::Tensor& rows, const at::Tensor& tensor) {
  auto sizes = tensor.sizes().vec();
  sizes.back() = rows.size(1);
  return rows.reshape(sizes);
}

// A context's saved_data stores IValues only.
struct ConfigHolder : torch::CustomClassHolder {
  explicit ConfigHolder(std::shared_ptr<const Float8LinearConfig> given) : config(std::move(given)) {}
  std::shared_ptr<const Float8LinearConfig> config;
};

struct Float8Matmul : torch::autograd::Function<Float8Matmul> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const at::Tensor& transposed_weight,
                            at::ScalarType dtype, const std::shared_ptr<const Float8LinearConfig>& config) {
    context->save_for_backward({input, transposed_weight});
    context->saved_data["config"] = c10::IValue::make_capsule(c10::make_intrusive<ConfigHolder>(config));
    const Multiplication in(*config, dtype);
    return in_shape_of(in.product(output_product(*config), rows_of(input), transposed_weight), input);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grad_outputs) {
    const auto saved = context->get_saved_variables();
    const auto &input = saved[0], &transposed_weight = saved[1];
    const auto holder = context->saved_data["config"].toCapsule();
    const auto& config = *static_cast<const ConfigHolder&>(*holder).config;
    const auto grad_output = rows_of(grad_outputs[0]);
    // The gradient's dtype decides: backward runs outside autocast, whose dtype forward has used.
    const Multiplication in(config, grad_output.scalar_type());
    const auto for_input = grad_input_product(config), for_weight = grad_weight_product(config);
    const auto scaled_rows = in.left(grad_output, for_input.left);
    at::Tensor grad_input, grad_weight;
    if (context->needs_input_grad(0))
      grad_input = in_shape_of(in.product(for_input, grad_output, scaled_rows, transposed_weight.t()), input);
    if (context->needs_input_grad(1)) {
      // A tensorwise scale also holds for the transpose, so the gradient is scaled only once.
      const bool is_scaled = scaled_rows && for_weight.left == for_input.left && !for_weight.left.is_axiswise;
      const auto columns = is_scaled ? std::optional(Scaled{scaled_rows->values.t(), scaled_rows->scale})
                                     : in.left(grad_output.t(), for_weight.left);
      grad_weight = in.product(for_weight, grad_output.t(), columns, rows_of(input)).t();
    }
    return {grad_input, grad_weight, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor float8_linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                         std::shared_ptr<const Float8LinearConfig> config) {
  const auto device = input.device().type();
  const bool autocasts = at::autocast::is_autocast_enabled(device) && at::autocast::is_eligible(input, device);
  const auto dtype = autocasts ? at::autocast::get_autocast_dtype(device) : input.scalar_type();
  // On the CPU Python's layer casts only the product, elsewhere its input.
  const auto operand = input.is_cpu() ? input : input.to(dtype);
  const auto output = Float8Matmul::apply(operand, weight.t(), dtype, config);
  return bias.defined() ? output + bias.to(output.scalar_type()) : output;
}

namespace {

// Per thread, because simulated ranks share a process and may use different precisions.
thread_local std::shared_ptr<const Float8Layers> current_layers;

// In the order of named_modules, since the default filter below excludes the first and the last.
std::vector<std::pair<std::string, const torch::nn::LinearImpl*>> linear_layers(const torch::nn::Module& model) {
  std::vector<std::pair<std::string, const torch::nn::LinearImpl*>> layers;
  if (const auto* layer = model.as<torch::nn::LinearImpl>()) layers.emplace_back("", layer);
  for (const auto& item : model.named_modules(/*name_prefix=*/"", /*include_self=*/false)) {
    if (const auto* layer = item.value()->as<torch::nn::LinearImpl>()) layers.emplace_back(item.key(), layer);
  }
  return layers;
}

// _scaled_mm supports multiples of 16 only.
bool is_aligned(std::int64_t features) { return features % 16 == 0; }

}  // namespace

Float8Layers::Float8Layers(const torch::nn::Module& model, const AORecipeKwargs& recipe)
    : config_(std::make_shared<const Float8LinearConfig>(recipe.config.value())) {
  // Otherwise LibTorch would silently keep its own LinearImpl::forward, and training would run in full precision.
  verify_interposition();
  const auto all = linear_layers(model);
  for (const auto& [name, layer] : all) {
    // Accelerate's default filter: the first and last layer are the most sensitive to rounding. See
    // filter_first_and_last_linear_layers in accelerate/utils/ao.py.
    const bool is_chosen = recipe.module_filter_func ? recipe.module_filter_func(*layer, name)
                                                     : layer != all.front().second && layer != all.back().second &&
                                                           is_aligned(layer->options.in_features()) &&
                                                           is_aligned(layer->options.out_features());
    if (!is_chosen) continue;
    names_.push_back(name);
    layers_.insert(layer);
  }
}

void Float8Layers::check_ran() const {
  check_state(ran_ || names_.empty(),
              "mixed_precision: fp8: none of the selected layers has computed in float8: {}; their class hides "
              "torch::nn::LinearImpl::forward; make its forward call that one when "
              "accel::computes_in_float8(*this) is true",
              fmt::join(names_, ", "));
}

Float8Scope::Float8Scope(std::shared_ptr<const Float8Layers> layers)
    : previous_(std::exchange(current_layers, std::move(layers))) {}
Float8Scope::~Float8Scope() { current_layers = std::move(previous_); }
std::shared_ptr<const Float8Layers> Float8Scope::current() { return current_layers; }

bool computes_in_float8(const torch::nn::LinearImpl& layer) {
  return current_layers && current_layers->contains(layer);
}

}  // namespace accel

namespace torch::nn {

// Replaces LibTorch's own definition: see Note [Interposition] in rank_local/interpose.cpp. Python swaps the modules
// instead; C++ cannot, because owners hold their submodules by type. Layers that are not selected do what Python's do.
// LibTorch's own definition multiplies by a transposed weight, and adds the bias of an input of three dimensions
// separately, which some processors round differently. An autograd node of our own would sum a weight's gradient in
// another order where a loss contains derivatives of a net that is called twice.
Tensor LinearImpl::forward(const Tensor& input) {
  if (accel::computes_in_float8(*this)) {
    accel::current_layers->mark_ran();
    return accel::float8_linear(input, weight, bias, accel::current_layers->config());
  }
  return at::linear(input, weight, bias);
}

}  // namespace torch::nn

#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <optional>

#include "reference/core/errors.hpp"
#include "reference/optim/state_dict/option_fields.hpp"
#include "reference/tree/value.hpp"

/// The options of one parameter group in LibTorch's form, which schedules read and write.
///
///     auto& options = optimizer.param_groups()[0].options();
///     options.set_lr(0.01);
///     if (auto* group = dynamic_cast<accel::optim::ParamGroupOptions*>(&options)) group->set_momentum(0.95);
///
/// If LibTorch has a class of options for an optimizer, the group's options derive from it, so that a cast to
/// `torch::optim::AdamOptions` works as well. Thread rule: the rank's thread.
namespace accel::optim {

class ParamGroupOptions {
 public:
  virtual ~ParamGroupOptions() = default;
  /// `momentum`, or the first of `betas`; nullopt if the optimizer has neither.
  [[nodiscard]] virtual std::optional<double> get_momentum() const = 0;
  virtual void set_momentum(double momentum) = 0;
  /// Whether `get_momentum` is the first of `betas`.
  [[nodiscard]] virtual bool momentum_is_beta1() const = 0;
  /// Further entries of the group in state dicts, such as the `initial_lr` of a schedule.
  [[nodiscard]] Value::Dict& extras() { return extras_; }
  [[nodiscard]] const Value::Dict& extras() const { return extras_; }

 private:
  Value::Dict extras_;
};

/// Options for which LibTorch has no class.
template <typename Options>
class PlainOptions : public torch::optim::OptimizerOptions {
 public:
  explicit PlainOptions(double lr) { values.lr = lr; }
  [[nodiscard]] double get_lr() const override { return values.lr; }
  void set_lr(double lr) override { values.lr = lr; }

  Options values;
};

/// LibTorch's class for these options: `Options::LibTorch` if it exists, else PlainOptions.
template <typename Options>
struct LibTorchClass {
  using type = PlainOptions<Options>;
};
template <typename Options>
  requires requires { typename Options::LibTorch; }
struct LibTorchClass<Options> {
  using type = typename Options::LibTorch;
};

/// `Options` in the form of LibTorch's class. An `Options` with a LibTorch class provides `assign(LibTorch)` and
/// `assign_to(LibTorch)` for the members that both have.
template <typename Options>
class GroupOptions final : public LibTorchClass<Options>::type, public ParamGroupOptions {
 public:
  using LibTorch = typename LibTorchClass<Options>::type;

  explicit GroupOptions(const Options& options) : LibTorch(options.lr) { write(options); }

  [[nodiscard]] Options read() const {
    auto options = rest_;
    assign(options, *this);
    return options;
  }
  void write(const Options& options) {
    rest_ = options;
    if constexpr (requires { typename Options::LibTorch; }) {
      options.assign_to(*this);
    } else {
      this->values = options;
    }
  }
  static void assign(Options& options, const LibTorch& from) {
    if constexpr (requires { typename Options::LibTorch; }) {
      options.assign(from);
    } else {
      options = from.values;
    }
  }

  [[nodiscard]] std::optional<double> get_momentum() const override {
    [[maybe_unused]] const auto options = read();
    if constexpr (requires { options.betas; }) {
      return std::get<0>(options.betas);
    } else if constexpr (requires { options.momentum; }) {
      return options.momentum;
    } else {
      return std::nullopt;
    }
  }
  void set_momentum([[maybe_unused]] double momentum) override {
    auto options = read();
    if constexpr (requires { options.betas; }) {
      std::get<0>(options.betas) = momentum;
    } else if constexpr (requires { options.momentum; }) {
      options.momentum = momentum;
    }
    write(options);
  }
  [[nodiscard]] bool momentum_is_beta1() const override {
    return requires(Options options) { options.betas; };
  }

 private:
  [[nodiscard]] std::unique_ptr<torch::optim::OptimizerOptions> clone() const override {
    return std::make_unique<GroupOptions>(*this);
  }

  Options rest_;  // for the members that LibTorch's class lacks
};

/// The options of a group, which may have been added with LibTorch's class. Throws ArgumentError for the options of
/// another optimizer.
template <typename Options>
Options options_of(const torch::optim::OptimizerOptions& group) {
  if (const auto* ours = dynamic_cast<const GroupOptions<Options>*>(&group)) return ours->read();
  const auto* libtorchs = dynamic_cast<const typename GroupOptions<Options>::LibTorch*>(&group);
  check_argument(libtorchs != nullptr,
                 "{}: a parameter group holds options of another optimizer; expected options of {}", Options::kName,
                 Options::kName);
  Options options;
  GroupOptions<Options>::assign(options, *libtorchs);
  return options;
}

/// Whether the optimizer steps with its fused kernel, if it has one, or in the multi-tensor form.
template <typename Options>
constexpr bool is_fused(const Options& options) {
  if constexpr (requires { options.fused; }) {
    return options.fused;
  } else {
    return false;
  }
}

/// The momentum that schedules cycle against the rate: `momentum` of SGD and RMSprop, the first of `betas` of Adam and
/// its variants. For LibTorch's options and this library's.
enum class MomentumKind { kMomentum, kBeta1 };

/// nullopt if the optimizer has neither.
std::optional<MomentumKind> momentum_kind(const torch::optim::OptimizerOptions& options);
/// Reads and sets the momentum of options that have one.
double momentum_of(const torch::optim::OptimizerOptions& options);
void set_momentum(torch::optim::OptimizerOptions& options, double momentum);

}  // namespace accel::optim

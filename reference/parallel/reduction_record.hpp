#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>  // edge.h alone lacks Node, which LibTorch 2.15 needs complete

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace accel {

/// Which kind of backward pass last added to a gradient.
enum class GradientOrigin : std::uint8_t {
  kReduced,    ///< a pass that averages over the ranks
  kLocal,      ///< a pass under no_sync, which keeps gradients on the rank
  kUnreduced,  ///< a pass that should have averaged, but whose loss did not come from the prepared model
};

/// Records the origin of each parameter's gradient, however the program calls forward and backward.
///
/// Thread rule: the rank's thread. Backward may run on other threads, but it ends before the rank's thread continues.
class ReductionRecord {
 public:
  /// `origin` is called for each gradient that a backward pass adds to. `parameters` must require gradients.
  ReductionRecord(const std::vector<at::Tensor>& parameters, std::function<GradientOrigin()> origin);
  ~ReductionRecord();
  ReductionRecord(const ReductionRecord&) = delete;
  ReductionRecord& operator=(const ReductionRecord&) = delete;

  /// Origins in the order of the parameters.
  [[nodiscard]] const std::vector<GradientOrigin>& origins() const { return origins_; }
  /// Marks kUnreduced gradients as reduced: the next backward pass averages them, including those of parameters that it
  /// does not reach.
  void will_reduce_unreduced();

 private:
  using Hook = std::pair<decltype(torch::autograd::Edge::function), std::uintptr_t>;
  std::function<GradientOrigin()> origin_;
  std::vector<GradientOrigin> origins_;
  std::vector<Hook> hooks_;
};

}  // namespace accel

#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace torch::autograd {
struct Node;
}

namespace accel {

/// Where the last value that backward added to a gradient came from.
enum class GradientOrigin : std::uint8_t {
  kReduced,  ///< a backward pass that averages over the ranks
  kLocal,    ///< one that keeps gradients on the rank, as the program asked
  kMissed,   ///< one that nothing prepared to average
};

/// Notes the origin of each parameter's gradient, whichever way the program runs forward and backward.
///
/// Thread rule: the rank's thread; backward passes on other threads end before it goes on.
class ReductionRecord {
 public:
  /// `origin` is called for each gradient that a backward pass adds to. `parameters` must require gradients.
  ReductionRecord(const std::vector<at::Tensor>& parameters, std::function<GradientOrigin()> origin);
  ~ReductionRecord();
  ReductionRecord(const ReductionRecord&) = delete;
  ReductionRecord& operator=(const ReductionRecord&) = delete;

  /// By the parameters' places.
  [[nodiscard]] const std::vector<GradientOrigin>& origins() const { return origins_; }
  /// The next backward pass averages what kMissed gradients hold by then, also of a parameter that it does not reach.
  void will_reduce_missed();

 private:
  using Hook = std::pair<std::shared_ptr<torch::autograd::Node>, std::uintptr_t>;
  std::function<GradientOrigin()> origin_;
  std::vector<GradientOrigin> origins_;
  std::vector<Hook> hooks_;
};

}  // namespace accel

#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>  // edge.h alone lacks Node, which LibTorch 2.15 needs complete

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "reference/state/gradient_marks.hpp"

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
  /// Takes over what another record knows about parameters that both have.
  void continue_from(const ReductionRecord& other);
  /// Whether the parameter still has the accumulator whose gradients this record sees. LibTorch replaces it when a
  /// program converts the parameter, or puts other values in its place.
  [[nodiscard]] bool sees(std::size_t place) const;
  /// Begins a backward pass, for `has_arrived`.
  void begin_pass() { ++pass_; }
  /// Whether the current backward pass has added to the parameter's gradient.
  [[nodiscard]] bool has_arrived(std::size_t place) const { return passes_[place] == pass_; }
  /// See GradientMarks.
  [[nodiscard]] std::vector<bool> take_written() { return marks_.take_written(); }
  /// Notes that the next backward pass averages all gradients, including those of parameters that it does not reach.
  void will_reduce_all();

 private:
  using Hook = std::pair<decltype(torch::autograd::Edge::function), std::uintptr_t>;
  std::function<GradientOrigin()> origin_;
  GradientMarks marks_;
  std::vector<GradientOrigin> origins_;
  std::vector<std::uint64_t> passes_;  // in which the gradient last arrived
  std::uint64_t pass_ = 1;
  std::vector<Hook> hooks_;
};

}  // namespace accel

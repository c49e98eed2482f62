#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace accel {

/// Notices that a module has assigned another tensor to a member (`seen = seen + x`) and so no longer writes the buffer
/// that it registered, which keeps its value and goes into checkpoints. The registry cannot show it, but the number of
/// references to the buffer can: that of the member is gone.
///
///     RegisteredBuffers buffers(module);   // before prepare takes references, too
///     ... prepare ...
///     buffers.count_prepared();
///     buffers.begin_forward();
///     ... a step ...
///     buffers.without_member();   // {"seen"}
///
/// Thread rule: the rank's thread.
class RegisteredBuffers {
 public:
  RegisteredBuffers() = default;
  explicit RegisteredBuffers(const torch::nn::Module& module);

  void count_prepared();
  /// Before a forward; the first one decides which buffers have members.
  void begin_forward();
  /// Returns the names of buffers that had members, and to which only the module's registry and what was prepared still
  /// refer. A graph that has saved a buffer refers to it, too, so the answer is complete only after backward.
  [[nodiscard]] std::vector<std::string> without_member() const;

 private:
  struct Buffer {
    std::string name;
    at::Tensor tensor;
    std::size_t num_foreign = 0;   // references of members and of the program when the record was made
    std::size_t num_prepared = 0;  // references without those, once everything is prepared
    [[nodiscard]] bool has_member() const { return tensor.use_count() > num_prepared; }
  };
  std::vector<Buffer> buffers_;
  bool has_begun_ = false;
};

}  // namespace accel

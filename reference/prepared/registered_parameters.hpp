#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace accel {

/// Which tensors a module had registered as parameters when it was prepared. What was prepared with them (buckets,
/// shards, an optimizer's state) does not know tensors that the program adds or puts in their place later.
///
/// Thread rule: the rank's thread.
class RegisteredParameters {
 public:
  /// `module` must outlive the record.
  explicit RegisteredParameters(const torch::nn::Module& module);

  [[nodiscard]] bool contains(const at::Tensor& parameter) const;
  /// Throws StateError, which begins with `what` and names the parameters that were added, replaced or removed since.
  /// Takes about 10 ns per parameter and module if nothing has changed.
  void check_unchanged(const char* what);

 private:
  struct Part {
    const torch::nn::Module* module;
    std::vector<const c10::TensorImpl*> parameters;  // in the order of registration
    std::vector<const torch::nn::Module*> children;  // likewise
  };
  void add(const torch::nn::Module& module);
  [[nodiscard]] static bool is_unchanged(const Part& part);
  [[nodiscard]] std::vector<std::string> changes() const;

  const torch::nn::Module* module_;
  std::vector<Part> parts_;  // parents first, so that a module is looked at only if its parent still has it
  std::map<std::string, at::Tensor> parameters_;  // kept alive, so that no other tensor gets the address of one
};

}  // namespace accel

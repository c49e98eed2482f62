#include "reference/modules/model_description.hpp"

#include <functional>
#include <numeric>

namespace accel {

std::int64_t ParameterShape::numel() const {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
}

bool calls_its_children(const ModuleDescription& module) {
  return module.is_container || is_class(module.class_name, "Sequential");
}

bool is_class(const std::string& spelled, const std::string& wanted) {
  // Options name classes as Python does ("Block"), but Module::name() gives the C++ spelling, where the implementation
  // of a TORCH_MODULE ends in "Impl".
  const auto colons = spelled.rfind("::");
  const auto name = colons == std::string::npos ? spelled : spelled.substr(colons + 2);
  return spelled == wanted || name == wanted || name == wanted + "Impl";
}

}  // namespace accel

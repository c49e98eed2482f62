#pragma once

#include <string>
#include <vector>

#include "reference/offload/device_map.hpp"

/// Which modules are brought to their device as a whole, when they are called. Pure. Thread rule: values.
///
/// Something can be done round a call of a part of a Sequential, of an element of a ModuleList or ModuleDict (which the
/// model calls by `accel::call`), and of the model itself. So each of these is a unit, with all that is in it but
/// further units.
namespace accel::offload {

struct Unit {
  std::string name = {};                  ///< of the module
  std::vector<std::string> tensors = {};  ///< names of parameters and buffers at their first places
};

struct UnitOptions {
  std::vector<std::string> preload_module_classes = {};  ///< units with all that is in them
  std::vector<std::string> called_modules = {};          ///< names of further modules that are called by `accel::call`
};

/// In the order of the model. Throws ArgumentError for names and classes that the model does not have.
std::vector<Unit> plan_units(const ModelDescription& model, const UnitOptions& options = {});

}  // namespace accel::offload

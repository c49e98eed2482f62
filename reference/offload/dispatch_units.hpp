#pragma once

#include <string>
#include <vector>

#include "reference/offload/device_map.hpp"

/// Which modules are loaded to their device as a unit when they are called. Pure. Thread rule: values.
///
/// Hooks exist around the calls of elements of a Sequential, of elements of a ModuleList or ModuleDict (which the model
/// calls with `accel::call`), and of the model itself. Each of these is a unit; it contains everything inside it except
/// further units.
namespace accel::offload {

struct Unit {
  std::string name = {};                  ///< name of the module
  std::vector<std::string> tensors = {};  ///< first names of its parameters and buffers
};

struct UnitOptions {
  std::vector<std::string> preload_module_classes = {};  ///< classes whose modules contain no further units
  std::vector<std::string> called_modules = {};          ///< names of further modules called with `accel::call`
};

/// Units in the order of the model. Throws ArgumentError for names and classes that the model does not contain.
std::vector<Unit> plan_units(const ModelDescription& model, const UnitOptions& options = {});

}  // namespace accel::offload

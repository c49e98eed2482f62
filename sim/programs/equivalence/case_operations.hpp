#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "reference/accelerator/accelerator.hpp"

/// The calls that a case makes between reading two batches.
namespace accel::programs {

struct OperationInput {
  Accelerator& accelerator;
  at::Tensor batch;        ///< shape (n, 2), float64: number of the sample, random number or 0
  std::int64_t place = 0;  ///< number of the call in the case
  std::optional<at::Generator> loader_generator = {};
};

struct CaseOperation {
  const char* name;
  const char* law;                               ///< whose cases draw it
  std::string (*run)(const OperationInput& in);  ///< returns what the rank observes; collective
};

/// The names of a law's operations; of all laws for "".
std::vector<const char*> operations_of(const std::string& law);
/// Null if there is no such operation.
const CaseOperation* find_operation(const std::string& name);

/// Shape and values of a tensor, exact: two texts are equal only if all bits are. Large tensors are hashed.
std::string text_of(const at::Tensor& tensor);
/// A hash of a generator's state.
std::string state_of(const at::Generator& generator);

}  // namespace accel::programs

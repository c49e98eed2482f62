#pragma once

#include <string>
#include <string_view>

#include "reference/checkpoint/python_calls.hpp"
#include "reference/checkpoint/python_object.hpp"

/// Reads pickles of protocols 2 to 5 without executing anything. It knows the classes and functions that torch.save
/// writes for plain data; everything else is an error.
///
///     PythonObjects objects(bytes.size());
///     const auto* root = unpickle(bytes, "optimizer.bin: data.pkl", objects);
///
/// Thread rule: any threads, each with its own PythonObjects.
namespace accel::checkpoint {

/// Reads a pickle. Throws CheckpointError that names `what` and the class or byte at fault. Uses at most a few hundred
/// times the memory of the pickle, whatever it contains. The result may contain itself.
PythonObject* unpickle(std::string_view bytes, const std::string& what, PythonObjects& objects,
                       PythonNames names = PythonNames::kTorchFile);

}  // namespace accel::checkpoint

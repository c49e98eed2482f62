#pragma once

#include <string>
#include <string_view>

#include "reference/checkpoint/python_object.hpp"

/// Reads pickles of protocols 2 to 5 without running what they name: classes and functions that torch.save writes for
/// plain data are known one by one, everything else is an error.
///
///     PythonObjects objects(bytes.size());
///     const auto* root = unpickle(bytes, "optimizer.bin: data.pkl", objects);
///
/// Thread rule: any threads, each with objects of its own.
namespace accel::checkpoint {

/// Throws CheckpointError that names `what`, and the class or the byte at fault. Memory is at most some hundred times
/// that of the pickle, whatever is in it. The result may contain itself.
PythonObject* unpickle(std::string_view bytes, const std::string& what, PythonObjects& objects);

}  // namespace accel::checkpoint

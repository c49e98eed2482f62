#pragma once

#include <map>
#include <string>

#include "reference/core/files.hpp"
#include "reference/core/named_tensors.hpp"
#include "reference/core/value.hpp"

/// Files of torch.save: read without running what they name, and written so that torch.load reads them with
/// weights_only=True.
///
///     const auto state = accel::read_torch_file("checkpoint/optimizer.bin");
///     accel::write_torch_file(files, "checkpoint/optimizer.bin", state,
///                             {.types = {{"state", PythonType::kIntegerKeys},
///                                        {"param_groups/*/betas", PythonType::kTuple}}});
///
/// Tensors that shared memory share it again, in the file and when it is read. What needs gradients does so in Python
/// only. Thread rule: any threads; one path has one writer at a time. Source: torch/serialization.py, _save and _load;
/// torch/_weights_only_unpickler.py.
namespace accel {

/// Numbers, strings, lists, dicts and tensors; bytes are strings, tuples and sets are lists, keys that are integers are
/// decimal strings, dtypes, devices and layouts are strings ("torch.float32", "cuda:0"), arrays of numpy are tensors,
/// its scalars numbers. Tensors are on the CPU, each storage copied once and checked; the file is in memory no second
/// time. Throws CheckpointError that names the file: it cannot be read, is damaged, or holds an object of any other
/// class.
Value read_torch_file(const std::string& path);

/// What Python has of a dict or a list, where a Value does not say it.
enum class PythonType { kTuple, kIntegerKeys, kOrderedDict, kCounter };  // a counter: of integers

struct TorchFileOptions {
  /// By place: keys from the outermost on, between slashes; "*" is any key, or any element of a list; "" is the whole.
  std::map<std::string, PythonType> types = {};
};

/// Writes atomically, tensor by tensor: nothing is copied but what is not in this memory, one storage at a time.
/// Throws ArgumentError for a tensor that torch.save does not write (sparse, without elements in memory), for memory
/// that is seen as several dtypes, and where a value is not of the type that the options tell; FileError as `Files`.
void write_torch_file(Files& files, const std::string& path, const Value& value, const TorchFileOptions& options = {});
/// The same for a dict of tensors in their order, which is a model's state.
void write_torch_file(Files& files, const std::string& path, const NamedTensors& tensors, bool is_ordered_dict = true);

}  // namespace accel

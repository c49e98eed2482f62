#pragma once

#include <map>
#include <string>

#include "reference/core/named_tensors.hpp"
#include "reference/files/files.hpp"
#include "reference/tree/value.hpp"

/// Reads and writes files of torch.save. Reading executes nothing from the file; written files can be read by
/// torch.load with weights_only=True.
///
///     const auto state = accel::read_torch_file("checkpoint/optimizer.bin");
///     accel::write_torch_file(files, "checkpoint/optimizer.bin", state,
///                             {.types = {{"state", PythonType::kIntegerKeys},
///                                        {"param_groups/*/betas", PythonType::kTuple}}});
///
/// Tensors that share memory share it in the file and after reading too. requires_grad is written, but ignored when
/// reading. Thread rule: any threads; one writer per path at a time. Source: torch/serialization.py, _save and _load;
/// torch/_weights_only_unpickler.py.
namespace accel {

/// Reads a file of plain data: numbers, strings, lists, dicts and tensors. Bytes become strings; tuples and sets become
/// lists; integer keys become decimal strings; dtypes, devices and layouts become strings ("torch.float32", "cuda:0");
/// numpy arrays become tensors, and numpy scalars numbers. Tensors are on the CPU. Each storage is copied once, with
/// its checksum verified, and the file is not held in memory as well. Throws CheckpointError that names the file if it
/// cannot be read, is damaged, or contains an object of another class.
Value read_torch_file(const std::string& path);

/// The Python type of a dict or list, which a Value cannot express. Keys of a counter are integers.
enum class PythonType { kTuple, kIntegerKeys, kOrderedDict, kCounter };

struct TorchFileOptions {
  /// Types by path: keys from the outermost inwards, separated by slashes. "*" matches any key and any element of a
  /// list; "" is the root.
  std::map<std::string, PythonType> types = {};
};

/// Writes a file atomically, tensor by tensor. Only storages on other devices are copied to memory, one at a time.
/// Throws ArgumentError for a tensor that torch.save cannot write (sparse, without data), for a storage that is used
/// with several dtypes, and for a value whose type contradicts the options; throws FileError like `Files`.
void write_torch_file(Files& files, const std::string& path, const Value& value, const TorchFileOptions& options = {});
/// Writes a dict of tensors in the given order, which is a model's state.
void write_torch_file(Files& files, const std::string& path, const NamedTensors& tensors, bool is_ordered_dict = true);

}  // namespace accel

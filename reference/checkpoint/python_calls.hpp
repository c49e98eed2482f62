#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "reference/checkpoint/python_object.hpp"
#include "reference/core/errors.hpp"

/// The classes and functions that occur in pickles of plain data, and the objects that they create.
///
/// All functions throw CheckpointError that begins with `what`. Thread rule: any threads, each with its own
/// PythonObjects.
namespace accel::checkpoint {

/// Which classes and functions a pickle may name: those of files of torch.save, or also those of the `.metadata` file
/// of torch.distributed.checkpoint.
enum class PythonNames { kTorchFile, kDistributedMetadata };

/// Returns a global by its current name: "numpy.core.multiarray" and "__builtin__" are replaced by their newer names.
/// Throws if the name is not among `names`.
python::Global known_global(std::string_view module, std::string_view name, const std::string& what, PythonNames names);
/// Evaluates `global(*arguments)`.
PythonObject* call(const python::Global& global, const python::Sequence& arguments, const std::string& what,
                   PythonObjects& objects);
/// Evaluates `object.__setstate__(state)`.
void set_state(PythonObject& object, const PythonObject& state, const std::string& what, PythonObjects& objects);
/// Creates a storage from the persistent id that torch.save writes for it.
PythonObject* persistent_object(const PythonObject& id, const std::string& what, PythonObjects& objects);

/// Evaluates functions of numpy; null if `global` is not one of them.
PythonObject* call_numpy(const python::Global& global, const python::Sequence& arguments, const std::string& what,
                         PythonObjects& objects);
void set_numpy_dtype_state(python::NumpyDtype& dtype, const PythonObject& state, const std::string& what);
void set_numpy_array_state(python::NumpyArray& array, const PythonObject& state, const std::string& what,
                           PythonObjects& objects);

/// The same for the classes of `.metadata`, which become python::Instance.
bool is_metadata_name(std::string_view name);
PythonObject* call_metadata(const python::Global& global, const python::Sequence& arguments, const std::string& what,
                            PythonObjects& objects);

/// Returns argument `index` as a T.
template <typename T>
const T& argument(const python::Sequence& arguments, std::size_t index, const std::string& what) {
  check_checkpoint(index < arguments.items.size(),
                   "{}: a call with {} arguments lacks argument {}; the file is damaged: copy or save it again", what,
                   arguments.items.size(), index);
  const auto* content = arguments.items[index]->get_if<T>();
  check_checkpoint(content != nullptr,
                   "{}: argument {} of a call has an unexpected type; the file is damaged: copy or save it again", what,
                   index);
  return *content;
}
std::vector<std::int64_t> int_arguments(const python::Sequence& arguments, std::size_t index, const std::string& what);

}  // namespace accel::checkpoint

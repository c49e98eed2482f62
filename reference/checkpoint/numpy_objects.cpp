// Reconstruction of numpy arrays, dtypes and scalars from pickles. Accelerate's random_states files contain them. The
// formats are those of numpy/_core/src/multiarray/methods.c (array_reduce, array_setstate) and descriptor.c.
#include "reference/checkpoint/python_calls.hpp"

#include <algorithm>
#include <numeric>

#include "reference/checkpoint/torch_dtypes.hpp"
#include "reference/files/stored_tensor.hpp"

namespace accel::checkpoint {
namespace {

using python::NumpyArray;
using python::NumpyDtype;
using python::Sequence;

// The bytes of an array. In protocol 2, which has no bytes type, they arrive as the result of _codecs.encode.
const std::string& bytes_argument(const Sequence& arguments, std::size_t index, const std::string& what) {
  return argument<python::Bytes>(arguments, index, what).bytes;
}

at::Tensor tensor_of(const std::string& bytes, const NumpyDtype& dtype, std::vector<std::int64_t> sizes,
                     bool is_fortran, const std::string& what, PythonObjects& objects) {
  // Before any allocation: a small pickle could otherwise reference the same bytes very often.
  objects.spend(bytes.size(), what);
  check_checkpoint(sizes.size() <= kDimensionsMax, "{}: a numpy array has {} dimensions; expected at most {}", what,
                   sizes.size(), kDimensionsMax);
  if (is_fortran) std::reverse(sizes.begin(), sizes.end());
  const auto needed = num_bytes_of(sizes, static_cast<std::int64_t>(c10::elementSize(dtype.dtype)) * 8);
  check_checkpoint(needed == static_cast<std::int64_t>(bytes.size()),
                   "{}: a numpy array has {} bytes, which does not match its shape", what, bytes.size());
  const auto tensor =
      StoredTensor{.bytes = bytes, .dtype = dtype.dtype, .sizes = sizes, .is_big_endian = dtype.is_big_endian}.load();
  // Column-major data is a row-major array with reversed sizes, seen through a permutation.
  if (!is_fortran) return tensor;
  std::vector<std::int64_t> order(sizes.size());
  std::iota(order.rbegin(), order.rend(), 0);
  return tensor.permute(order);
}

// Parses "f8", or "<f8" with a byte order.
NumpyDtype dtype_of(std::string_view name, const std::string& what) {
  NumpyDtype result;
  if (!name.empty() && std::string_view("<>|=").find(name.front()) != std::string_view::npos) {
    result.is_big_endian = name.front() == '>';
    name.remove_prefix(1);
  }
  const auto dtype = numpy_dtype(name);
  check_checkpoint(dtype.has_value(), "{}: numpy dtype '{}' has no equivalent in torch", what, name);
  result.dtype = *dtype;
  return result;
}

}  // namespace

PythonObject* call_numpy(const python::Global& global, const Sequence& arguments, const std::string& what,
                         PythonObjects& objects) {
  if (global.name == "numpy.dtype") return objects.make(dtype_of(argument<std::string>(arguments, 0, what), what));
  // Creates an empty array, which a later BUILD opcode fills.
  if (global.name == "numpy._core.multiarray._reconstruct") return objects.make(NumpyArray{});
  if (global.name == "numpy._core.multiarray.scalar") {
    return objects.make(NumpyArray{tensor_of(bytes_argument(arguments, 1, what),
                                             argument<NumpyDtype>(arguments, 0, what), {}, false, what, objects),
                                   true});
  }
  if (global.name == "numpy._core.numeric._frombuffer") {
    const auto is_fortran = argument<std::string>(arguments, 3, what) == "F";
    return objects.make(
        NumpyArray{tensor_of(bytes_argument(arguments, 0, what), argument<NumpyDtype>(arguments, 1, what),
                             int_arguments(arguments, 2, what), is_fortran, what, objects)});
  }
  return nullptr;
}

// The state is (version, byte order, ...).
void set_numpy_dtype_state(NumpyDtype& dtype, const PythonObject& state, const std::string& what) {
  const auto* tuple = state.get_if<Sequence>();
  check_checkpoint(tuple != nullptr, "{}: the state of a numpy dtype is not a tuple", what);
  dtype.is_big_endian = argument<std::string>(*tuple, 1, what) == ">";
}

// The state is (version, shape, dtype, is Fortran order, bytes).
void set_numpy_array_state(NumpyArray& array, const PythonObject& state, const std::string& what,
                           PythonObjects& objects) {
  const auto* tuple = state.get_if<Sequence>();
  check_checkpoint(tuple != nullptr && !array.tensor.defined(),
                   "{}: the state of a numpy array is not a tuple, or is set twice", what);
  array.tensor = tensor_of(bytes_argument(*tuple, 4, what), argument<NumpyDtype>(*tuple, 2, what),
                           int_arguments(*tuple, 1, what), argument<bool>(*tuple, 3, what), what, objects);
}

}  // namespace accel::checkpoint

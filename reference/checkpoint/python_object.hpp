#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "reference/core/errors.hpp"

/// Objects of a pickle before they are converted to a Value. They may contain each other, and may have types that a
/// Value lacks.
///
///     PythonObjects objects(pickle.size());
///     auto* list = objects.make(python::Sequence{.kind = python::Sequence::kList});
///
/// Thread rule: one thread.
namespace accel::checkpoint {

struct PythonObject;

namespace python {

struct None {};
struct LargeInt {};  // an integer of more than 64 bits
struct Bytes {
  std::string bytes = {};
};
/// A class or a function. It is only a name; nothing is executed.
struct Global {
  std::string name = {};  // "torch._utils._rebuild_tensor_v2"
};
struct Sequence {
  enum Kind { kList, kTuple, kSet } kind = kList;
  std::vector<PythonObject*> items = {};
};
struct Dict {
  std::vector<std::pair<PythonObject*, PythonObject*>> items = {};
};
/// A record of the archive.
struct Storage {
  std::string record = {};                   // "data/0"
  std::optional<at::ScalarType> dtype = {};  // empty for untyped storages
  std::int64_t num_bytes = 0;
};
/// A tensor: a view of the elements of a record.
struct TensorView {
  Storage storage = {};
  at::ScalarType dtype = at::kByte;
  std::int64_t offset = 0;  // in elements, like the strides
  std::vector<std::int64_t> sizes = {}, strides = {};
  bool is_conj = false, is_neg = false;
};
/// An object of a class with attributes, which are its state: a dict or a tuple. Null until the pickle sets it.
struct Instance {
  std::string_view class_name = {};  // "torch.distributed.checkpoint.metadata.Metadata"
  const PythonObject* state = nullptr;
};
struct NumpyDtype {
  at::ScalarType dtype = at::kByte;
  bool is_big_endian = false;
};
/// Its tensor is undefined until its state is set.
struct NumpyArray {
  at::Tensor tensor = {};
  bool is_scalar = false;
};

}  // namespace python

struct PythonObject {
  std::variant<python::None, bool, std::int64_t, python::LargeInt, double, std::string, python::Bytes, python::Global,
               python::Sequence, python::Dict, python::Storage, python::TensorView, python::NumpyDtype,
               python::NumpyArray, python::Instance>
      content;

  template <typename T>
  [[nodiscard]] T* get_if() {
    return std::get_if<T>(&content);
  }
  template <typename T>
  [[nodiscard]] const T* get_if() const {
    return std::get_if<T>(&content);
  }
};

/// Owns all objects of a pickle, so that cycles are freed too. A pickle can reference an object many times with few
/// bytes each, while we copy it each time, so the copied bytes are limited.
class PythonObjects {
 public:
  /// The limit of copies is proportional to the size of the pickle.
  explicit PythonObjects(std::uint64_t pickle_bytes) : bytes_left_(kCopies * pickle_bytes + kCopiedBytesMin) {}

  template <typename T>
  PythonObject* make(T content) {
    return &objects_.emplace_back(PythonObject{std::move(content)});
  }
  /// Call it before `bytes` are copied. Throws CheckpointError that begins with `what` if the limit is exceeded.
  void spend(std::uint64_t bytes, const std::string& what) {
    check_checkpoint(bytes <= bytes_left_,
                     "{}: references the same objects too often; files of plain data do not do that; save the data "
                     "without repeated references",
                     what);
    bytes_left_ -= bytes;
  }

 private:
  static constexpr std::uint64_t kCopies = 64, kCopiedBytesMin = 1 << 20;
  std::uint64_t bytes_left_;
  std::deque<PythonObject> objects_;
};

}  // namespace accel::checkpoint

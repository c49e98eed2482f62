// A pickle is a program that may call any Python function. This reader never runs anything: it knows a fixed list of
// names and what each one builds, and rejects everything else. The list covers what torch.save writes for plain data.
// Sources: torch/_weights_only_unpickler.py; torch/_utils.py.
#include "reference/checkpoint/python_calls.hpp"

#include <array>
#include <set>

#include "reference/checkpoint/torch_dtypes.hpp"
#include "reference/core/errors.hpp"
#include "reference/files/stored_tensor.hpp"

namespace accel::checkpoint {
namespace {

using python::Bytes;
using python::Dict;
using python::Global;
using python::Sequence;
using python::Storage;
using python::TensorView;

constexpr int kCallsMax = 8;  // maximum nesting of torch._tensor._rebuild_from_type_v2

// Names that may occur. Some are only arguments of others (numpy.ndarray, torch.Tensor) and are never called.
const std::set<std::string, std::less<>>& known_names() {
  static const std::set<std::string, std::less<>> kNames{"_codecs.encode",
                                                         "builtins.bool",
                                                         "builtins.bytearray",
                                                         "builtins.bytes",
                                                         "builtins.complex",
                                                         "builtins.dict",
                                                         "builtins.float",
                                                         "builtins.frozenset",
                                                         "builtins.int",
                                                         "builtins.list",
                                                         "builtins.set",
                                                         "builtins.str",
                                                         "builtins.tuple",
                                                         "collections.Counter",
                                                         "collections.OrderedDict",
                                                         "collections.defaultdict",
                                                         "numpy._core.multiarray._reconstruct",
                                                         "numpy._core.multiarray.scalar",
                                                         "numpy._core.numeric._frombuffer",
                                                         "numpy.dtype",
                                                         "numpy.ndarray",
                                                         "torch.Size",
                                                         "torch.Tensor",
                                                         "torch._tensor._rebuild_from_type_v2",
                                                         "torch._utils._rebuild_parameter",
                                                         "torch._utils._rebuild_parameter_with_state",
                                                         "torch._utils._rebuild_tensor_v2",
                                                         "torch._utils._rebuild_tensor_v3",
                                                         "torch.device",
                                                         "torch.nn.parameter.Parameter",
                                                         "torch.serialization._get_layout",
                                                         "torch.storage.UntypedStorage"};
  return kNames;
}

// Returns "FloatStorage" for "torch.FloatStorage" and "torch.cuda.FloatStorage", else "".
std::string_view torch_class(std::string_view name) {
  for (const std::string_view prefix : {"torch.cuda.", "torch."}) {
    if (name.substr(0, prefix.size()) == prefix) return name.substr(prefix.size());
  }
  return {};
}

// Dtypes (torch.float32) and storage classes (torch.FloatStorage) are known too, from the table in torch_dtypes.cpp.
bool is_known(const std::string& name) {
  const auto in_torch = torch_class(name);
  return known_names().contains(name) || torch_dtype(in_torch) || storage_dtype(in_torch);
}

// Converts latin1 text, as protocol 2 writes bytes, back to bytes.
std::string from_latin1(const std::string& text, const std::string& what) {
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto lead = static_cast<unsigned char>(text[i]);
    if (lead < 0x80) {
      bytes += text[i];
      continue;
    }
    check_checkpoint((lead == 0xc2 || lead == 0xc3) && i + 1 < text.size() && (text[i + 1] & 0xc0) == 0x80,
                     "{}: bytes are not encoded as latin1 text", what);
    bytes += static_cast<char>((lead & 3) << 6 | (text[++i] & 0x3f));
  }
  return bytes;
}

TensorView tensor_view(const Sequence& arguments, const std::string& what) {
  TensorView view{.storage = argument<Storage>(arguments, 0, what),
                  .offset = argument<std::int64_t>(arguments, 1, what),
                  .sizes = int_arguments(arguments, 2, what),
                  .strides = int_arguments(arguments, 3, what)};
  // _rebuild_tensor_v2(storage, offset, size, stride, requires_grad, backward_hooks, metadata=None); v3 has a dtype
  // before the metadata. requires_grad and hooks are dropped.
  std::size_t metadata = 6;
  if (view.storage.dtype) {
    view.dtype = *view.storage.dtype;
  } else {
    const auto dtype = torch_dtype(torch_class(argument<Global>(arguments, metadata++, what).name));
    check_checkpoint(dtype.has_value(), "{}: a tensor has an unknown dtype", what);
    view.dtype = *dtype;
  }
  if (metadata < arguments.items.size()) {
    for (const auto& [key, value] : argument<Dict>(arguments, metadata, what).items) {
      const auto* name = key->get_if<std::string>();
      const auto* is_on = value->get_if<bool>();
      if (name && is_on && *name == "conj") view.is_conj = *is_on;
      if (name && is_on && *name == "neg") view.is_neg = *is_on;
    }
  }
  return view;
}

// Evaluates functions of torch. Subclasses of tensors become plain tensors, and attributes are dropped.
PythonObject* call_torch(const Global& global, const Sequence& arguments, const std::string& what,
                         PythonObjects& objects, int depth);

// dict(), dict(other) and dict([(key, value), ...]): Python 2 writes an OrderedDict in the last form.
Dict dict_of(const Sequence& arguments, const std::string& what) {
  Dict dict;
  if (arguments.items.empty()) return dict;
  if (const auto* other = arguments.items[0]->get_if<Dict>()) return *other;
  for (const auto* item : argument<Sequence>(arguments, 0, what).items) {
    const auto* pair = item->get_if<Sequence>();
    check_checkpoint(pair != nullptr && pair->items.size() == 2, "{}: an item of a dict is not a pair", what);
    dict.items.emplace_back(pair->items[0], pair->items[1]);
  }
  return dict;
}

// bytes() and bytearray() without arguments are empty; _codecs.encode(text, "latin1") has text.
std::string bytes_of(const Sequence& arguments, const std::string& what) {
  if (arguments.items.empty()) return {};
  if (const auto* text = arguments.items[0]->get_if<std::string>()) return from_latin1(*text, what);
  return argument<Bytes>(arguments, 0, what).bytes;
}

PythonObject* call_builtin(const Global& global, const Sequence& arguments, const std::string& what,
                           PythonObjects& objects) {
  const auto& name = global.name;
  if (name == "_codecs.encode" || name == "builtins.bytes" || name == "builtins.bytearray")
    return objects.make(Bytes{bytes_of(arguments, what)});
  if (name == "collections.OrderedDict" || name == "collections.Counter" || name == "builtins.dict")
    return objects.make(dict_of(arguments, what));
  if (name == "collections.defaultdict") return objects.make(Dict{});
  // All of these become a Value::List, so the kind does not matter.
  if (name == "builtins.set" || name == "builtins.frozenset" || name == "builtins.list" || name == "builtins.tuple") {
    return objects.make(
        arguments.items.empty() ? Sequence{} : Sequence{Sequence::kSet, argument<Sequence>(arguments, 0, what).items});
  }
  return nullptr;
}

// The bytes that a call copies from its first argument. Charged before the copy: a pickle of a few kilobytes could call
// list() on itself and grow exponentially.
std::uint64_t copied_bytes(const Sequence& arguments) {
  if (arguments.items.empty()) return 0;
  const auto& content = *arguments.items[0];
  if (const auto* text = content.get_if<std::string>()) return text->size();
  if (const auto* bytes = content.get_if<Bytes>()) return bytes->bytes.size();
  if (const auto* dict = content.get_if<Dict>()) return dict->items.size() * sizeof(dict->items[0]);
  if (const auto* sequence = content.get_if<Sequence>()) return sequence->items.size() * sizeof(PythonObject*) * 2;
  if (const auto* view = content.get_if<TensorView>()) return view->sizes.size() * 2 * sizeof(view->sizes[0]);
  return 0;
}

// The four call_* functions return null for names that they do not handle. A known name that none of them handles,
// such as numpy.ndarray, must not be called.
PythonObject* call_any(const Global& global, const Sequence& arguments, const std::string& what, PythonObjects& objects,
                       int depth) {
  objects.spend(copied_bytes(arguments), what);
  auto* result = call_builtin(global, arguments, what, objects);
  if (!result) result = call_numpy(global, arguments, what, objects);
  if (!result) result = call_torch(global, arguments, what, objects, depth);
  if (!result) result = call_metadata(global, arguments, what, objects);
  check_checkpoint(
      result != nullptr,
      "{}: a call of {} does not create plain data; save only numbers, strings, lists, dicts, tensors and numpy arrays",
      what, global.name);
  return result;
}

PythonObject* call_torch(const Global& global, const Sequence& arguments, const std::string& what,
                         PythonObjects& objects, int depth) {
  const auto& name = global.name;
  if (name == "torch._utils._rebuild_tensor_v2" || name == "torch._utils._rebuild_tensor_v3") {
    auto view = tensor_view(arguments, what);
    objects.spend((view.sizes.size() + view.strides.size()) * sizeof(std::int64_t), what);
    return objects.make(std::move(view));
  }
  if (name == "torch._utils._rebuild_parameter" || name == "torch._utils._rebuild_parameter_with_state") {
    return objects.make(argument<TensorView>(arguments, 0, what));
  }
  // (function, type, arguments, state): a tensor subclass, or a tensor with attributes. Only the inner call matters.
  if (name == "torch._tensor._rebuild_from_type_v2") {
    check_checkpoint(depth < kCallsMax, "{}: tensor subclasses are nested too deeply", what);
    return call_any(argument<Global>(arguments, 0, what), argument<Sequence>(arguments, 2, what), what, objects,
                    depth + 1);
  }
  // Layouts and devices become strings, since a Value has no such types.
  if (name == "torch.Size")
    return objects.make(Sequence{Sequence::kTuple, argument<Sequence>(arguments, 0, what).items});
  if (name == "torch.serialization._get_layout") return objects.make(argument<std::string>(arguments, 0, what));
  if (name == "torch.device") {
    const auto& type = argument<std::string>(arguments, 0, what);
    return objects.make(
        arguments.items.size() < 2 ? type : fmt::format("{}:{}", type, argument<std::int64_t>(arguments, 1, what)));
  }
  return nullptr;
}

}  // namespace

python::Global known_global(std::string_view module, std::string_view name, const std::string& what,
                            PythonNames names) {
  // Files of older versions use the older names. They are mapped here, so that the list of known names stays short.
  std::string full(module);
  for (const auto& [older, newer] : {std::pair{"__builtin__", "builtins"},
                                     {"numpy.core.multiarray", "numpy._core.multiarray"},
                                     {"numpy.core.numeric", "numpy._core.numeric"},
                                     {"torch.tensor", "torch._tensor"}}) {
    if (full == older) full = newer;
  }
  full += '.';
  full += name;
  check_checkpoint(
      is_known(full) || (names == PythonNames::kDistributedMetadata && is_metadata_name(full)),
      "{}: contains an object of {}, but this library reads only plain data: numbers, strings, lists, dicts, tensors "
      "and numpy arrays; save it without that object",
      what, full);
  return {full};
}

PythonObject* call(const Global& global, const Sequence& arguments, const std::string& what, PythonObjects& objects) {
  return call_any(global, arguments, what, objects, 0);
}

void set_state(PythonObject& object, const PythonObject& state, const std::string& what, PythonObjects& objects) {
  if (auto* array = object.get_if<python::NumpyArray>()) return set_numpy_array_state(*array, state, what, objects);
  if (auto* dtype = object.get_if<python::NumpyDtype>()) return set_numpy_dtype_state(*dtype, state, what);
  if (auto* instance = object.get_if<python::Instance>()) {
    instance->state = &state;
    return;
  }
  // Attributes are dropped, such as `_metadata` of the OrderedDict that a module's state_dict() returns.
  const bool has_attributes = object.get_if<Dict>() || object.get_if<TensorView>();
  check_checkpoint(has_attributes, "{}: sets the state of an object that has no state", what);
}

PythonObject* persistent_object(const PythonObject& id, const std::string& what, PythonObjects& objects) {
  const auto* tuple = id.get_if<Sequence>();
  check_checkpoint(tuple != nullptr,
                   "{}: the id of a storage is not a tuple; the file is damaged: copy or save it again", what);
  check_checkpoint(argument<std::string>(*tuple, 0, what) == "storage", "{}: a persistent object is not a storage",
                   what);
  // ("storage", class, key, location, number of elements): the location (device) is ignored, tensors go to the CPU.
  const auto& type = argument<Global>(*tuple, 1, what).name;
  Storage storage{.record = "data/" + argument<std::string>(*tuple, 2, what),
                  .dtype = storage_dtype(torch_class(type))};
  // Typed storages count elements, untyped ones bytes.
  const auto count = argument<std::int64_t>(*tuple, 4, what);
  check_checkpoint(storage.dtype || type == "torch.storage.UntypedStorage", "{}: {} is not a storage class", what,
                   type);
  const auto bits = storage.dtype ? static_cast<std::int64_t>(c10::elementSize(*storage.dtype)) * 8 : 8;
  const auto num_bytes = num_bytes_of({count}, bits);
  check_checkpoint(num_bytes.has_value(),
                   "{}: {}: a storage has an invalid size of {} elements; the file is damaged: copy or save it again",
                   what, storage.record, count);
  storage.num_bytes = *num_bytes;
  return objects.make(std::move(storage));
}

// Sizes and strides. A bool is an int in Python, but never occurs there, so it is rejected.
std::vector<std::int64_t> int_arguments(const Sequence& arguments, std::size_t index, const std::string& what) {
  std::vector<std::int64_t> numbers;
  for (const auto* item : argument<Sequence>(arguments, index, what).items) {
    const auto* number = item->get_if<std::int64_t>();
    check_checkpoint(number != nullptr, "{}: argument {} of a call: expected integers", what, index);
    numbers.push_back(*number);
  }
  return numbers;
}

}  // namespace accel::checkpoint

// Converts the objects of a pickle to a Value. Storages are read when the first tensor that uses them is converted.
#include "reference/checkpoint/torch_archive.hpp"
#include "reference/checkpoint/torch_file.hpp"
#include "reference/core/errors.hpp"

namespace accel {
namespace {

using namespace checkpoint;

constexpr int kObjectDepthMax = 500;

class Conversion {
 public:
  explicit Conversion(TorchArchive& archive) : archive_(archive) {}

  Value value(const PythonObject& object, int depth = 0) {
    // The limit also ends the recursion for objects that contain themselves.
    check_checkpoint(depth < kObjectDepthMax,
                     "{}: objects are nested more than {} deep; flatten the data and save it again", archive_.path(),
                     kObjectDepthMax);
    archive_.spend(sizeof(Value));
    return std::visit([&](const auto& content) { return of(content, depth); }, object.content);
  }

 private:
  Value of(const python::None&, int) { return {}; }
  Value of(bool value, int) { return value; }
  Value of(std::int64_t value, int) { return value; }
  Value of(double value, int) { return value; }
  Value of(const std::string& text, int) {
    archive_.spend(text.size());
    return text;
  }
  Value of(const python::Bytes& bytes, int depth) { return of(bytes.bytes, depth); }
  Value of(const python::LargeInt&, int) { refuse("an integer of more than 64 bits"); }
  Value of(const python::Storage&, int) { refuse("a storage without a tensor"); }
  Value of(const python::Instance&, int) { refuse("an object of a class"); }
  Value of(const python::NumpyDtype&, int) { refuse("a numpy dtype without an array"); }
  Value of(const python::Global& global, int) {
    // torch's dtypes, layouts and memory formats are lower-case names directly in torch; classes are capitalized.
    const bool is_dtype = global.name.rfind("torch.", 0) == 0 && global.name.find('.', 6) == std::string::npos &&
                          std::islower(global.name[6]) != 0;
    if (!is_dtype) refuse("the class " + global.name);
    return global.name;
  }
  Value of(const python::Sequence& sequence, int depth) {
    Value::List list;
    for (const auto* item : sequence.items) list.push_back(value(*item, depth + 1));
    return list;
  }
  // Keys are strings in a Value. Integer keys, as in an optimizer's "state", become decimal strings.
  Value of(const python::Dict& dict, int depth) {
    Value::Dict result;
    std::map<std::string, std::size_t> types;
    for (const auto& [key, item] : dict.items) {
      const auto name = key_name(*key);
      archive_.spend(name.size());
      // The keys 1 and "1" are different in Python but equal in a Value: one would be lost silently.
      const bool is_one = types.emplace(name, key->content.index()).first->second == key->content.index();
      if (!is_one) refuse(fmt::format("a dict with two keys '{}' of different types", name));
      result[name] = value(*item, depth + 1);
    }
    return result;
  }
  std::string key_name(const PythonObject& key) const {
    if (const auto* text = key.get_if<std::string>()) return *text;
    if (const auto* bytes = key.get_if<python::Bytes>()) return bytes->bytes;
    if (const auto* number = key.get_if<std::int64_t>()) return std::to_string(*number);
    refuse("a dict with a key that is neither a string nor a 64-bit integer");
  }
  // Storages are shared between the tensors of a file, as in torch.load: an optimizer's views stay views.
  Value of(const python::TensorView& view, int) {
    archive_.check(view);
    auto& storage = storages_[view.storage.record];
    if (!storage) storage = archive_.storage(view);
    return archive_.tensor(view, storage);
  }
  Value of(const python::NumpyArray& array, int) {
    const auto& tensor = array.tensor;
    if (!tensor.defined()) refuse("a numpy array without data");
    // A numpy scalar becomes a number, as users expect for a step count. A Value has no complex numbers.
    if (!array.is_scalar || tensor.is_complex()) return tensor;
    if (tensor.scalar_type() == at::kBool) return tensor.item<bool>();
    if (tensor.is_floating_point()) return tensor.item<double>();
    if (tensor.scalar_type() == at::kUInt64 && tensor.item().toUInt64() > static_cast<std::uint64_t>(INT64_MAX))
      refuse("an integer of more than 64 bits");
    return tensor.to(at::kLong).item<std::int64_t>();
  }
  [[noreturn]] void refuse(const std::string& what) const {
    throw CheckpointError(fmt::format("{}: contains {}; expected plain data", archive_.path(), what));
  }

  TorchArchive& archive_;
  std::map<std::string, at::Storage> storages_;
};

}  // namespace

Value checkpoint::read_value(TorchArchive& archive) { return Conversion(archive).value(archive.root()); }

Value read_torch_file(const std::string& path) {
  TorchArchive archive(path);
  return read_value(archive);
}

}  // namespace accel

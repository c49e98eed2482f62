// Opcodes are those of CPython's Lib/pickletools.py. The result is read by torch.load(weights_only=True), whose
// unpickler (torch/_weights_only_unpickler.py) supports only a part of them.
#include "reference/checkpoint/pickler.hpp"

#include <bit>
#include <concepts>
#include <limits>

#include "reference/checkpoint/torch_dtypes.hpp"
#include "reference/core/errors.hpp"

namespace accel::checkpoint {
namespace {

template <std::integral T>
std::string little(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

// Whether Python's decoder accepts the text: no surrogates, no overlong encodings, nothing beyond U+10FFFF.
bool is_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const std::size_t length = lead < 0x80   ? 1
                               : lead < 0xc2 ? 0
                               : lead < 0xe0 ? 2
                               : lead < 0xf0 ? 3
                               : lead < 0xf5 ? 4
                                             : 0;
    if (length == 0 || i + length > text.size()) return false;
    for (std::size_t k = 1; k < length; ++k) {
      if ((text[i + k] & 0xc0) != 0x80) return false;
    }
    const auto second = length > 1 ? static_cast<unsigned char>(text[i + 1]) : 0;
    if ((lead == 0xe0 && second < 0xa0) || (lead == 0xed && second > 0x9f) || (lead == 0xf0 && second < 0x90) ||
        (lead == 0xf4 && second > 0x8f))
      return false;
    i += length;
  }
  return true;
}

}  // namespace

Pickler::Pickler() : bytes_("\x80\x02") {}

template <typename Write>
// Like Python's memo: equal strings and globals are written once. BINPUT ('q') and BINGET ('h') have 8-bit indices,
// LONG_BINPUT ('r') and LONG_BINGET ('j') 32-bit ones.
void Pickler::once(const std::string& key, Write&& write) {
  const auto [found, is_new] = memo_.emplace(key, memo_.size());
  const auto index = found->second;
  if (is_new) write();
  if (index < 256)
    bytes_ += (is_new ? 'q' : 'h') + little(static_cast<std::uint8_t>(index));
  else
    bytes_ += (is_new ? 'r' : 'j') + little(index);
}

// The shortest opcode that fits, as in Python: BININT1, BININT2, BININT, and LONG1, here always with 8 bytes.
void Pickler::integer(std::int64_t value) {
  if (value >= 0 && value < 256)
    bytes_ += 'K' + little(static_cast<std::uint8_t>(value));
  else if (value >= 0 && value < 65536)
    bytes_ += 'M' + little(static_cast<std::uint16_t>(value));
  else if (value >= std::numeric_limits<std::int32_t>::min() && value <= std::numeric_limits<std::int32_t>::max())
    bytes_ += 'J' + little(static_cast<std::int32_t>(value));
  else
    bytes_ += "\x8a\x08" + little(value);
}

// Pickle stores floats in big-endian order, all other numbers in little-endian order.
void Pickler::number(double value) { bytes_ += 'G' + little(__builtin_bswap64(std::bit_cast<std::uint64_t>(value))); }

void Pickler::utf8(std::string_view text) {
  check_argument(text.size() <= std::numeric_limits<std::uint32_t>::max(),
                 "cannot save a string of {} bytes; expected less than 4 GiB", text.size());
  bytes_ += 'X' + little(static_cast<std::uint32_t>(text.size()));
  bytes_ += text;
}

void Pickler::text(const std::string& text) {
  if (is_utf8(text)) return once("text " + text, [&] { utf8(text); });
  // Protocol 2 has no bytes type. Python writes _codecs.encode(text, "latin1"), with one character per byte.
  std::string characters;
  for (const auto byte : text) {
    const auto code = static_cast<unsigned char>(byte);
    if (code < 0x80)
      characters += byte;
    else
      characters += {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};
  }
  global("_codecs", "encode");
  utf8(characters);
  this->text("latin1");
  bytes_ += "\x86R";
}

void Pickler::global(const std::string& module, const std::string& name) {
  once("global " + module + "." + name, [&] { bytes_ += "c" + module + "\n" + name + "\n"; });
}

void Pickler::begin_object(const std::string& module, const std::string& name) {
  global(module, name);
  bytes_ += ")\x81";
}

void Pickler::begin_call(const std::string& module, const std::string& name) {
  global(module, name);
  begin_tuple();
}

void Pickler::torch_size(at::IntArrayRef sizes) {
  begin_call("torch", "Size");
  integers(sizes);
  end_call();
}

// An OrderedDict is created by a call without arguments, then filled like a dict.
void Pickler::begin_dict(bool is_ordered) {
  if (is_ordered) {
    global("collections", "OrderedDict");
    bytes_ += ")R(";
  } else {
    bytes_ += "}(";
  }
}

// A Counter is created by a call with the filled dict as its argument, so end_counter() closes dict and call.
void Pickler::begin_counter() {
  global("collections", "Counter");
  bytes_ += "(}(";
}

void Pickler::begin_list() { bytes_ += "]("; }

void Pickler::integers(at::IntArrayRef values) {
  begin_tuple();
  for (const auto value : values) integer(value);
  end_tuple();
}

// The persistent id ("storage", class, key, location, number of elements) of torch/serialization.py, persistent_id.
void Pickler::storage(const at::Tensor& tensor, const std::string& storage_name) {
  const auto& storage = tensor.storage();
  const auto written_as = storage_name.empty() ? "UntypedStorage" : storage_name;
  const auto [found, is_new] =
      storage_keys_.emplace(storage.unsafeGetStorageImpl(), std::pair{storages_.size(), written_as});
  if (is_new) storages_.push_back(storage);
  check_argument(found->second.second == written_as,
                 "cannot save tensors that share memory as {} and as {}; torch.load supports one dtype per storage",
                 written_as, found->second.second);
  begin_tuple();
  text("storage");
  global(storage_name.empty() ? "torch.storage" : "torch", written_as);
  text(std::to_string(found->second.first));
  text(tensor.device().str());
  integer(static_cast<std::int64_t>(storage.nbytes() / (storage_name.empty() ? 1 : tensor.element_size())));
  end_tuple();
  bytes_ += 'Q';
}

void Pickler::tensor(const at::Tensor& given) {
  check_argument(given.defined() && given.layout() == at::kStrided && !given.is_meta() && given.has_storage(),
                 "cannot save a sparse tensor or one without data; expected a dense tensor");
  // Lazy conjugation and negation are bits of the tensor, which _rebuild_tensor_v2 without metadata cannot restore.
  const auto tensor = given.resolve_conj().resolve_neg();
  const auto& names = torch_dtype_names(tensor.scalar_type());
  // Dtypes that are newer than the typed storages are written with untyped storages and an explicit dtype (v3).
  const bool is_new_dtype = names.storage_name.empty();
  global("torch._utils", is_new_dtype ? "_rebuild_tensor_v3" : "_rebuild_tensor_v2");
  begin_tuple();
  storage(tensor, names.storage_name);
  integer(tensor.storage_offset());
  integers(tensor.sizes());
  integers(tensor.strides());
  boolean(tensor.requires_grad());
  begin_dict(true);  // hooks
  end_dict();
  if (is_new_dtype) global("torch", names.name);
  end_tuple();
  bytes_ += 'R';
}

}  // namespace accel::checkpoint

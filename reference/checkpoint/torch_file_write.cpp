// Writes files that torch.load(weights_only=True) accepts. The pickle is created completely first, in memory, and then
// the storages are written one after the other, so the peak memory is one storage of another device.
#include <ATen/ops/empty.h>
#include <caffe2/serialize/inline_container.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <exception>
#include <optional>
#include <vector>

#include "reference/checkpoint/pickler.hpp"
#include "reference/checkpoint/torch_archive.hpp"
#include "reference/checkpoint/torch_file.hpp"
#include "reference/core/errors.hpp"

namespace accel {
namespace {

using checkpoint::Pickler;

// Only the canonical form counts: "01" would become the key 1 and come back as "1".
std::optional<std::int64_t> integer_of(const std::string& text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_whole = error == std::errc() && end == text.data() + text.size() && std::to_string(number) == text;
  return is_whole ? std::optional(number) : std::nullopt;
}

// Matches a path of TorchFileOptions, step by step. Keys may contain slashes, so the pattern cannot be split first.
bool fits(std::string_view pattern, const std::vector<std::string>& place) {
  for (std::size_t i = 0; i < place.size(); ++i) {
    if (i > 0) {
      if (pattern.empty() || pattern.front() != '/') return false;
      pattern.remove_prefix(1);
    }
    const bool is_any = pattern.substr(0, pattern.find('/')) == "*";
    if (!is_any && pattern.substr(0, place[i].size()) != place[i]) return false;
    pattern.remove_prefix(is_any ? 1 : place[i].size());
  }
  return pattern.empty();
}

// Pickles a Value as the Python objects that the options describe. `place_` is the path of the current value.
class ValuePickling {
 public:
  ValuePickling(Pickler& pickler, const TorchFileOptions& options, const std::string& path,
                std::vector<std::string> place = {})
      : pickler_(pickler), options_(options), path_(path), place_(std::move(place)) {}

  // The declared type must match the value: a wrong path in the options is a mistake in the program, not in the data.
  void write(const Value& value) {
    const auto type = type_here();
    const bool is_list = value.is<Value::List>(), is_dict = value.is<Value::Dict>();
    check_argument(!type || (*type == PythonType::kTuple ? is_list : is_dict),
                   "{}: '{}' is {}, but the options declare a {}; change the value or the options' types", path_,
                   fmt::to_string(fmt::join(place_, "/")), value.type_name(),
                   type == PythonType::kTuple ? "tuple" : "dict");
    if (is_list)
      write_list(value.as<Value::List>(), type == PythonType::kTuple);
    else if (is_dict)
      write_dict(value.as<Value::Dict>(), type);
    else
      write_leaf(value);
  }

 private:
  // The first pattern in lexicographic order wins; patterns of one file do not overlap.
  [[nodiscard]] std::optional<PythonType> type_here() const {
    for (const auto& [pattern, type] : options_.types) {
      if (fits(pattern, place_)) return type;
    }
    return std::nullopt;
  }
  // Keeps `place_` correct for type_here() and for messages. An exception ends the complete write, so it need not be
  // restored then.
  void write_at(const std::string& step, const Value& value) {
    place_.push_back(step);
    write(value);
    place_.pop_back();
  }
  void write_list(const Value::List& list, bool is_tuple) {
    is_tuple ? pickler_.begin_tuple() : pickler_.begin_list();
    for (std::size_t i = 0; i < list.size(); ++i) write_at(std::to_string(i), list[i]);
    is_tuple ? pickler_.end_tuple() : pickler_.end_list();
  }
  void write_dict(const Value::Dict& dict, std::optional<PythonType> type) {
    const bool is_counter = type == PythonType::kCounter;
    is_counter ? pickler_.begin_counter() : pickler_.begin_dict(type == PythonType::kOrderedDict);
    if (is_counter || type == PythonType::kIntegerKeys) {
      for (const auto& [number, entry] : by_number(dict)) {
        pickler_.integer(number);
        write_at(entry->first, entry->second);
      }
    } else {
      for (const auto& [key, value] : dict) {
        pickler_.text(key);
        write_at(key, value);
      }
    }
    is_counter ? pickler_.end_counter() : pickler_.end_dict();
  }
  // In numerical order: a Value::Dict sorts "10" before "2", and Python iterates in the order of the file.
  [[nodiscard]] std::map<std::int64_t, const Value::Dict::value_type*> by_number(const Value::Dict& dict) const {
    std::map<std::int64_t, const Value::Dict::value_type*> entries;
    for (const auto& entry : dict) {
      const auto number = integer_of(entry.first);
      check_argument(
          number.has_value(),
          "{}: '{}' has the key '{}', but the options declare integer keys; change the key or the options' types",
          path_, fmt::to_string(fmt::join(place_, "/")), entry.first);
      entries[*number] = &entry;
    }
    return entries;
  }
  void write_leaf(const Value& value) {
    if (value.is_null())
      pickler_.none();
    else if (value.is<bool>())
      pickler_.boolean(value.as<bool>());
    else if (value.is<std::int64_t>())
      pickler_.integer(value.as<std::int64_t>());
    else if (value.is<double>())
      pickler_.number(value.as<double>());
    else if (value.is<std::string>())
      pickler_.text(value.as<std::string>());
    else
      pickler_.tensor(value.as<at::Tensor>());
  }

  Pickler& pickler_;
  const TorchFileOptions& options_;
  const std::string& path_;
  std::vector<std::string> place_;
};

// A view of the storage's bytes, or a copy if the storage is on another device.
at::Tensor bytes_on_cpu(const at::Storage& storage) {
  auto bytes = at::empty({0}, at::TensorOptions(at::kByte).device(storage.device()));
  bytes.set_(storage, 0, {static_cast<std::int64_t>(storage.nbytes())}, {1});
  return bytes.cpu();
}

// Uses LibTorch's PyTorchStreamWriter on a WritableFile. The writer is partly C code (miniz), so exceptions of the file
// must not pass through it: they are stored and rethrown at the end.
class ArchiveWriter {
 public:
  /// Checksums are the only reason to read the elements of tensors.
  explicit ArchiveWriter(WritableFile& file, bool has_checksums = true)
      : writer_([this, &file](const void* bytes, std::size_t size) { return append(file, bytes, size); },
                has_checksums) {}

  void write(const std::vector<at::Storage>& storages, const std::string& pickled) {
    try {
      // The records, and their order, of torch/serialization.py, _save.
      write_record("data.pkl", pickled.data(), pickled.size());
      write_text(".format_version", "1");
      write_text(".storage_alignment", "64");
      write_text("byteorder", "little");
      for (std::size_t i = 0; i < storages.size(); ++i) {
        const auto bytes = bytes_on_cpu(storages[i]);
        write_record("data/" + std::to_string(i), bytes.const_data_ptr(), bytes.nbytes());
      }
    } catch (...) {
      if (!error_) error_ = std::current_exception();
    }
    finish();
    if (error_) std::rethrow_exception(error_);
  }

 private:
  void write_text(const std::string& name, std::string_view text) { write_record(name, text.data(), text.size()); }
  void write_record(const std::string& name, const void* bytes, std::size_t size) {
    if (!error_) writer_.writeRecord(name, size > 0 ? bytes : "", size);
  }
  // A return value of 0 means that the write failed. The writer then throws its own error, which is less precise.
  std::size_t append(WritableFile& file, const void* bytes, std::size_t size) {
    if (error_) return 0;
    try {
      file.append({static_cast<const char*>(bytes), size});
      return size;
    } catch (...) {
      error_ = std::current_exception();
      return 0;
    }
  }
  // Called after an error too: otherwise the writer's destructor would end the file, and throw.
  void finish() {
    try {
      writer_.writeEndOfFile();
    } catch (...) {
      if (!error_) error_ = std::current_exception();
    }
  }

  std::exception_ptr error_;
  caffe2::serialize::PyTorchStreamWriter writer_;
};

// Counts bytes instead of writing them.
class SizeOnly final : public WritableFile {
 public:
  void append(std::string_view bytes) override { size += static_cast<std::int64_t>(bytes.size()); }
  void sync() override {}
  void close() override {}

  std::int64_t size = 0;
};

// Atomic: an interrupted write leaves the old file.
void write_archive(Files& files, const std::string& path, Pickler& pickler) {
  const auto pickled = pickler.finish();
  write_atomically(files, path, [&](WritableFile& file) { ArchiveWriter(file).write(pickler.storages(), pickled); });
}

}  // namespace

void checkpoint::append_archive(WritableFile& file, const Value& value, const TorchFileOptions& options,
                                const std::vector<std::string>& place, const std::string& what) {
  Pickler pickler;
  ValuePickling(pickler, options, what, place).write(value);
  ArchiveWriter(file).write(pickler.storages(), pickler.finish());
}

std::int64_t checkpoint::archive_size(const Value& value, const TorchFileOptions& options,
                                      const std::vector<std::string>& place, const std::string& what) {
  Pickler pickler;
  ValuePickling(pickler, options, what, place).write(value);
  SizeOnly file;
  ArchiveWriter(file, /*has_checksums=*/false).write(pickler.storages(), pickler.finish());
  return file.size;
}

void write_torch_file(Files& files, const std::string& path, const Value& value, const TorchFileOptions& options) {
  Pickler pickler;
  ValuePickling(pickler, options, path).write(value);
  write_archive(files, path, pickler);
}

// Does not go through a Value, whose dicts are sorted: the order of a model's state is part of it.
void write_torch_file(Files& files, const std::string& path, const NamedTensors& tensors, bool is_ordered_dict) {
  Pickler pickler;
  pickler.begin_dict(is_ordered_dict);
  for (const auto& [name, tensor] : tensors) {
    pickler.text(name);
    pickler.tensor(tensor);
  }
  pickler.end_dict();
  write_archive(files, path, pickler);
}

}  // namespace accel

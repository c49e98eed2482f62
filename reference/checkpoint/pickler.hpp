#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// Writes pickles of plain data like torch.save, in protocol 2.
///
///     Pickler pickler;
///     pickler.begin_dict(false);
///     pickler.text("weight");
///     pickler.tensor(weight);
///     pickler.end_dict();
///     const auto pickled = pickler.finish();
///
/// Thread rule: one thread.
namespace accel::checkpoint {

class Pickler {
 public:
  Pickler();
  void none() { bytes_ += 'N'; }
  void boolean(bool value) { bytes_ += value ? '\x88' : '\x89'; }
  void integer(std::int64_t value);
  void number(double value);
  /// Text that is not valid UTF-8 becomes `bytes` in Python.
  void text(const std::string& text);
  /// Throws ArgumentError if torch.save cannot write the tensor, or if its storage was already written as another
  /// dtype.
  void tensor(const at::Tensor& tensor);

  /// Write keys and values alternately after it, then call end_dict().
  void begin_dict(bool is_ordered);
  void end_dict() { bytes_ += 'u'; }
  void begin_counter();
  void end_counter() { bytes_ += "utR"; }
  void begin_list();
  void end_list() { bytes_ += 'e'; }
  /// A class, a function or a dtype, by its name.
  void global(const std::string& module, const std::string& name);
  /// Creates an object of a class without arguments. Write its state after it, then call end_object().
  void begin_object(const std::string& module, const std::string& name);
  void end_object() { bytes_ += 'b'; }
  /// Calls a class or a function with the tuple that is written between.
  void begin_call(const std::string& module, const std::string& name);
  void end_call() { bytes_ += "tR"; }
  /// A torch.Size.
  void torch_size(at::IntArrayRef sizes);
  void begin_tuple() { bytes_ += '('; }
  void end_tuple() { bytes_ += 't'; }

  [[nodiscard]] std::string finish() { return bytes_ + '.'; }
  /// The records of the archive: storage `i` is "data/i".
  [[nodiscard]] const std::vector<at::Storage>& storages() const { return storages_; }

 private:
  void utf8(std::string_view text);
  void integers(at::IntArrayRef values);
  void storage(const at::Tensor& tensor, const std::string& storage_name);
  /// Calls `write` the first time a key occurs, and writes a memo reference afterwards.
  template <typename Write>
  void once(const std::string& key, Write&& write);

  std::string bytes_;
  std::map<std::string, std::uint32_t> memo_;
  std::vector<at::Storage> storages_;
  std::map<const void*, std::pair<std::size_t, std::string>>
      storage_keys_;  // the number of each storage, and the class as which it was written
};

}  // namespace accel::checkpoint

#include "reference/data/loader_state.hpp"

#include <fmt/ranges.h>

#include "reference/core/errors.hpp"

namespace accel {
namespace {

constexpr std::int64_t kFormat = 1;

Value of_tensor(const at::Tensor& tensor) { return tensor.defined() ? Value(tensor) : Value(); }

Value to_value(const PassState& pass) {
  Value::List readers;
  for (const auto& reader : pass.readers) readers.push_back(Value::Dict{{"num_batches", reader.num_batches}, {"generator", of_tensor(reader.generator)}});
  return Value::Dict{{"num_read", pass.num_read},         {"base_seed", pass.base_seed},     {"random_state", of_tensor(pass.random_state)},
                     {"ahead_state", of_tensor(pass.ahead_state)}, {"readers", readers},    {"next_reader", pass.next_reader},
                     {"num_left_over", pass.num_left_over}};
}

// Reads a dict, and collects what is wrong with it.
class Reader {
 public:
  Reader(const Value& value, std::vector<std::string>& problems) : value_(value), problems_(problems) {}

  template <typename T>
  void read(const char* key, T& target) {
    if (const auto* found = find(key)) {
      if (found->is<T>()) {
        target = found->as<T>();
      } else {
        problems_.push_back(fmt::format("{}: expected {}, got {}", key, Value(T()).type_name(), found->type_name()));
      }
    }
  }
  template <typename T>
  void read(const char* key, std::optional<T>& target) {
    if (const auto* found = find(key); found != nullptr && !found->is_null()) read(key, target.emplace());
  }
  void read_tensor(const char* key, at::Tensor& target) {
    if (const auto* found = find(key); found != nullptr && !found->is_null()) read(key, target);
  }
  void read_count(const char* key, std::int64_t& target) {
    read(key, target);
    if (target < 0) problems_.push_back(fmt::format("{}: expected 0 or more, got {}", key, target));
  }
  const Value* find(const char* key) {
    if (value_.contains(key)) return &value_.at(key);
    problems_.push_back(fmt::format("{}: missing", key));
    return nullptr;
  }

 private:
  const Value& value_;
  std::vector<std::string>& problems_;
};

PassState pass_of(const Value& value, std::vector<std::string>& problems) {
  PassState pass;
  Reader reader(value, problems);
  reader.read_count("num_read", pass.num_read);
  reader.read("base_seed", pass.base_seed);
  reader.read_tensor("random_state", pass.random_state);
  reader.read_tensor("ahead_state", pass.ahead_state);
  reader.read_count("next_reader", pass.next_reader);
  reader.read_count("num_left_over", pass.num_left_over);
  Value::List readers;
  reader.read("readers", readers);
  for (const auto& item : readers) {
    Reader of_item(item, problems);
    of_item.read_count("num_batches", pass.readers.emplace_back().num_batches);
    of_item.read_tensor("generator", pass.readers.back().generator);
  }
  return pass;
}

}  // namespace

Value to_value(const LoaderState& state) {
  return Value::Dict{{"format", kFormat},
                     {"source", state.source},
                     {"num_samples", state.num_samples ? Value(*state.num_samples) : Value()},
                     {"num_processes", state.num_processes},
                     {"process_index", state.process_index},
                     {"epoch", state.epoch},
                     {"order", state.order},
                     {"generator", of_tensor(state.generator)},
                     {"pass", state.pass ? to_value(*state.pass) : Value()}};
}

LoaderState loader_state_of(const Value& value) {
  std::vector<std::string> problems;
  LoaderState state;
  std::int64_t format = kFormat;
  Reader reader(value, problems);
  reader.read("format", format);
  if (format != kFormat) problems.push_back(fmt::format("format: this build reads {}, got {}", kFormat, format));
  reader.read("source", state.source);
  reader.read("num_samples", state.num_samples);
  reader.read_count("num_processes", state.num_processes);
  reader.read_count("process_index", state.process_index);
  reader.read_count("epoch", state.epoch);
  if (const auto* order = reader.find("order")) state.order = *order;
  reader.read_tensor("generator", state.generator);
  if (const auto* pass = reader.find("pass"); pass != nullptr && !pass->is_null()) state.pass = pass_of(*pass, problems);
  if (!problems.empty()) throw CheckpointError(fmt::format("this is no state of a loader: {}", fmt::join(problems, "; ")));
  return state;
}

}  // namespace accel

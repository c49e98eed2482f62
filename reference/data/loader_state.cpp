// Conversion and validation of loader states. A state comes from a checkpoint that another version, world size or
// program may have written, so all problems are collected and reported together.
#include "reference/data/loader_state.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/rank_local/random.hpp"

namespace accel {
namespace {

constexpr std::int64_t kFormat = 1;
constexpr std::int64_t kMost = std::int64_t{1} << 60;  // limit of all counts, so that sums do not overflow

Value of_tensor(const at::Tensor& tensor) { return tensor.defined() ? Value(tensor) : Value(); }

Value of_tensors(const std::vector<at::Tensor>& tensors) {
  Value::List list;
  for (const auto& tensor : tensors) list.push_back(of_tensor(tensor));
  return list;
}

Value to_value(const WorkersState& workers) {
  return Value::Dict{{"base_seed", workers.base_seed}, {"generators", of_tensors(workers.generators)}};
}

Value to_value(const PassRecord& pass) {
  Value::List readers;
  for (const auto& reader : pass.readers)
    readers.push_back(Value::Dict{{"num_samples", reader.num_samples}, {"generator", of_tensor(reader.generator)}});
  Value::Dict value{{"num_read", pass.num_read},
                    {"base_seed", pass.base_seed},
                    {"random_state", of_tensor(pass.random_state)},
                    {"ahead_state", of_tensor(pass.ahead_state)},
                    {"readers", readers},
                    {"next_reader", pass.next_reader},
                    {"num_left_over", pass.num_left_over}};
  if (!pass.worker_starts.empty()) value["worker_starts"] = of_tensors(pass.worker_starts);
  return value;
}

// Reads the entries of a dict and collects all problems.
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
  // A null entry means that there was no generator. The state is checked here by creating a generator from it, so
  // that load_state cannot fail halfway.
  void read_generator_state(const char* key, at::Tensor& target) {
    const auto* found = find(key);
    if (found == nullptr || found->is_null()) return;
    read(key, target);
    if (!target.defined()) return;
    try {
      generator_of_state(target);
    } catch (const ArgumentError& error) {
      problems_.push_back(fmt::format("{}: {}", key, error.what()));
    }
  }
  // Absent in the states of loaders without persistent workers.
  void read_generator_states(const char* key, std::vector<at::Tensor>& targets) {
    if (!value_.contains(key)) return;
    Value::List states;
    read(key, states);
    for (const auto& state : states) {
      const Value entry = Value::Dict{{key, state}};
      Reader(entry, problems_).read_generator_state(key, targets.emplace_back());
    }
  }
  void read_count(const char* key, std::int64_t& target) {
    read(key, target);
    if (target < 0 || target > kMost)
      problems_.push_back(fmt::format("{}: expected 0 to {}, got {}", key, kMost, target));
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

PassRecord pass_of(const Value& value, std::vector<std::string>& problems) {
  PassRecord pass;
  Reader reader(value, problems);
  reader.read_count("num_read", pass.num_read);
  reader.read("base_seed", pass.base_seed);
  reader.read_generator_states("worker_starts", pass.worker_starts);
  reader.read_generator_state("random_state", pass.random_state);
  reader.read_generator_state("ahead_state", pass.ahead_state);
  reader.read_count("next_reader", pass.next_reader);
  reader.read_count("num_left_over", pass.num_left_over);
  Value::List readers;
  reader.read("readers", readers);
  for (const auto& item : readers) {
    Reader of_item(item, problems);
    of_item.read_count("num_samples", pass.readers.emplace_back().num_samples);
    of_item.read_generator_state("generator", pass.readers.back().generator);
  }
  if (!pass.random_state.defined()) problems.emplace_back("random_state: expected the state of a generator, got null");
  if (pass.next_reader > 0 && pass.next_reader >= static_cast<std::int64_t>(pass.readers.size())) {
    problems.push_back(fmt::format("next_reader: {} is out of range; expected less than {}, the number of readers",
                                   pass.next_reader, pass.readers.size()));
  }
  return pass;
}

using Problems = std::vector<std::string>;

void compare_data(const LoaderState& state, const LoaderState& own, Problems& problems) {
  if (state.source != own.source)
    problems.push_back(
        fmt::format("the state is of a loader that reads {}, but this loader reads {}", state.source, own.source));
  if (state.num_samples == own.num_samples) return;
  const auto text = [](const auto& size) {
    return size ? fmt::format("{} samples", *size) : std::string("an unknown number of samples");
  };
  problems.push_back(fmt::format("the state is of a dataset with {}, but this dataset has {}", text(state.num_samples),
                                 text(own.num_samples)));
}

// With the same world size every rank needs its own state. With another one only the state of rank 0 is usable:
// it holds the order on dispatched loaders too.
void compare_ranks(const LoaderState& state, const LoaderComparison& fit, Problems& problems) {
  const auto& own = fit.own;
  const bool same_ranks = fit.has_ranks_of(state);
  if (same_ranks && state.process_index != own.process_index) {
    problems.push_back(fmt::format("the state is of rank {} of {}, but this is rank {}; load the state of this rank",
                                   state.process_index, state.num_processes, own.process_index));
  }
  if (fit.reads && state.order.is_null())
    problems.emplace_back(
        "the state contains no order, because rank 0 read the data for its rank; load the state of rank 0");
  if (!same_ranks && state.process_index != 0) {
    problems.push_back(fmt::format(
        "the state is of rank {} of {}, but the world size is now {}; load the state of rank 0 on every rank",
        state.process_index, state.num_processes, own.num_processes));
  }
}

// Compares the readers of rank 0 (readers_then, readers_now), which has the most: ranks may have different
// numbers of parts, and all ranks must reach the same verdict.
void compare_readers(const LoaderState& state, const LoaderComparison& fit, Problems& problems) {
  const auto then = fit.readers_then, now = fit.readers_now;
  if (state.pass && fit.is_stream && std::max(then, now) > 1 && then != now) {
    problems.push_back(
        fmt::format("the epoch was started with {} workers that read separate parts, but this loader has {}; set "
                    "num_workers to the previous value",
                    then, now));
  } else if (fit.reads && state.pass && fit.reads_by_parts() &&
             static_cast<int>(state.pass->readers.size()) != fit.num_readers) {
    problems.push_back(fmt::format("the state contains the positions of {} workers; expected {}",
                                   state.pass->readers.size(), fit.num_readers));
  }
}

}  // namespace

Value to_value(const LoaderState& state) {
  Value::Dict value{{"format", kFormat},
                    {"source", state.source},
                    {"num_samples", state.num_samples ? Value(*state.num_samples) : Value()},
                    {"num_shards", state.num_shards},
                    {"num_workers", state.num_workers},
                    {"num_processes", state.num_processes},
                    {"process_index", state.process_index},
                    {"epoch", state.epoch},
                    {"order", state.order},
                    {"generator", of_tensor(state.generator)},
                    {"pass", state.pass ? to_value(*state.pass) : Value()}};
  if (state.workers) value["workers"] = to_value(*state.workers);
  return value;
}

// Recognized only to give a clear message: torchdata's state describes worker snapshots, not samples.
bool is_torchdata_loader_state(const Value& value) {
  return !value.contains("format") && value.contains("_iterator_finished");
}

// Continues after the first problem with default values, so that one message lists all of them.
LoaderState loader_state_of(const Value& value) {
  std::vector<std::string> problems;
  LoaderState state;
  std::int64_t format = kFormat;
  Reader reader(value, problems);
  reader.read("format", format);
  if (format != kFormat)
    problems.push_back(fmt::format("format: expected {}, the format of this build, got {}", kFormat, format));
  reader.read("source", state.source);
  reader.read("num_samples", state.num_samples);
  reader.read_count("num_shards", state.num_shards);
  reader.read_count("num_workers", state.num_workers);
  reader.read_count("num_processes", state.num_processes);
  reader.read_count("process_index", state.process_index);
  reader.read_count("epoch", state.epoch);
  if (const auto* order = reader.find("order")) state.order = *order;
  reader.read_generator_state("generator", state.generator);
  if (const auto* pass = reader.find("pass"); pass != nullptr && !pass->is_null())
    state.pass = pass_of(*pass, problems);
  if (value.contains("workers")) {
    Reader of_workers(value.at("workers"), problems);
    of_workers.read("base_seed", state.workers.emplace().base_seed);
    of_workers.read_generator_states("generators", state.workers->generators);
  }
  if (!problems.empty())
    throw CheckpointError(fmt::format("the value is not the state of a loader: {}", listed(problems, "; ")));
  return state;
}

std::vector<std::string> problems_of(const LoaderState& state, const LoaderComparison& fit) {
  Problems problems;
  compare_data(state, fit.own, problems);
  compare_ranks(state, fit, problems);
  if (state.num_shards != fit.own.num_shards) {
    problems.push_back(fmt::format("the state is of a stream with {} parts, but this stream has {}", state.num_shards,
                                   fit.own.num_shards));
  }
  compare_readers(state, fit, problems);
  if (!fit.has_ranks_of(state) && state.source == "shards" && state.pass) {
    problems.push_back(fmt::format(
        "the epoch was started on {} ranks that read separate parts, and {} ranks cannot continue it; let rank 0 read "
        "(dispatch_batches: true) or use order: elastic",
        state.num_processes, fit.own.num_processes));
  }
  return problems;
}

std::string step_back(LoaderState& state, std::int64_t num_steps, std::int64_t units_per_step) {
  if (!state.pass) return "its loader's epoch had ended";
  if (state.source == "shards") return "its loader's stream is read by parts, each from its start";
  const auto begin = state.pass->num_read - num_steps * units_per_step;
  if (begin < 0) return "it began in the epoch before";
  state.pass->num_read = begin;
  state.pass->ahead_state = at::Tensor();
  state.pass->readers.clear();
  state.pass->next_reader = state.pass->num_left_over = 0;
  return "";
}

// With another world size the samples are divided differently, so the states of individual readers are dropped
// and only the shared count remains. `ahead_state` is that of a rank that may not exist any more.
std::optional<SavedPass> resumed_pass(const LoaderComparison& fit, const LoaderState& state) {
  if (!state.pass) return std::nullopt;
  SavedPass pass{.order = state.order, .record = *state.pass};
  if (fit.has_ranks_of(state)) return pass;
  pass.record.ahead_state = at::Tensor();
  pass.record.worker_starts.clear();
  if (!fit.reads_by_parts()) {
    pass.record.readers.clear();
    pass.record.next_reader = 0;
  }
  return pass;
}

}  // namespace accel

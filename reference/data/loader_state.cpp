#include "reference/data/loader_state.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "reference/core/errors.hpp"
#include "reference/core/random.hpp"

namespace accel {
namespace {

constexpr std::int64_t kFormat = 1;
constexpr std::int64_t kMost = std::int64_t{1} << 60;  // of any count, so that sums do not overflow

Value of_tensor(const at::Tensor& tensor) { return tensor.defined() ? Value(tensor) : Value(); }

Value to_value(const PassState& pass) {
  Value::List readers;
  for (const auto& reader : pass.readers)
    readers.push_back(Value::Dict{{"num_samples", reader.num_samples}, {"generator", of_tensor(reader.generator)}});
  return Value::Dict{{"num_read", pass.num_read},
                     {"base_seed", pass.base_seed},
                     {"random_state", of_tensor(pass.random_state)},
                     {"ahead_state", of_tensor(pass.ahead_state)},
                     {"readers", readers},
                     {"next_reader", pass.next_reader},
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
  // Of a generator; nothing, if there was none.
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

PassState pass_of(const Value& value, std::vector<std::string>& problems) {
  PassState pass;
  Reader reader(value, problems);
  reader.read_count("num_read", pass.num_read);
  reader.read("base_seed", pass.base_seed);
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
  if (!pass.random_state.defined()) problems.emplace_back("random_state: expected the state of a generator, got none");
  if (pass.next_reader > 0 && pass.next_reader >= static_cast<std::int64_t>(pass.readers.size())) {
    problems.push_back(fmt::format("next_reader: {} is not one of {}", pass.next_reader, pass.readers.size()));
  }
  return pass;
}

using Problems = std::vector<std::string>;

void compare_data(const LoaderState& state, const LoaderState& own, Problems& problems) {
  if (state.source != own.source)
    problems.push_back(fmt::format("it is of a loader that reads {}, this one reads {}", state.source, own.source));
  if (state.num_samples == own.num_samples) return;
  const auto text = [](const auto& size) {
    return size ? fmt::format("{} samples", *size) : std::string("an unknown number of samples");
  };
  problems.push_back(
      fmt::format("it is of a dataset of {}, this one has {}", text(state.num_samples), text(own.num_samples)));
}

void compare_ranks(const LoaderState& state, const LoaderFit& fit, Problems& problems) {
  const auto& own = fit.own;
  const bool same_ranks = fit.has_ranks_of(state);
  if (same_ranks && state.process_index != own.process_index) {
    problems.push_back(fmt::format("it is of rank {} of {}, and this is rank {}", state.process_index,
                                   state.num_processes, own.process_index));
  }
  if (fit.reads && state.order.is_null())
    problems.emplace_back("it is of a rank that rank 0 reads for, and holds no order; load rank 0's");
  if (!same_ranks && state.process_index != 0) {
    problems.push_back(fmt::format("it is of rank {} of {}, and there are {} now; load rank 0's on every rank",
                                   state.process_index, state.num_processes, own.num_processes));
  }
}

void compare_readers(const LoaderState& state, const LoaderFit& fit, Problems& problems) {
  const auto then = fit.readers_then, now = fit.readers_now;
  if (state.pass && fit.is_stream && std::max(then, now) > 1 && then != now) {
    problems.push_back(
        fmt::format("{} workers have begun an epoch, each with parts of its own, and this loader has {}; set "
                    "num_workers to what it was",
                    then, now));
  } else if (fit.reads && state.pass && fit.reads_by_parts() &&
             static_cast<int>(state.pass->readers.size()) != fit.num_readers) {
    problems.push_back(
        fmt::format("it holds {} workers' places, expected {}", state.pass->readers.size(), fit.num_readers));
  }
}

}  // namespace

Value to_value(const LoaderState& state) {
  return Value::Dict{{"format", kFormat},
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
}

bool is_pythons_loader_state(const Value& value) {
  return !value.contains("format") && value.contains("_iterator_finished");
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
  reader.read_count("num_shards", state.num_shards);
  reader.read_count("num_workers", state.num_workers);
  reader.read_count("num_processes", state.num_processes);
  reader.read_count("process_index", state.process_index);
  reader.read_count("epoch", state.epoch);
  if (const auto* order = reader.find("order")) state.order = *order;
  reader.read_generator_state("generator", state.generator);
  if (const auto* pass = reader.find("pass"); pass != nullptr && !pass->is_null())
    state.pass = pass_of(*pass, problems);
  if (!problems.empty())
    throw CheckpointError(fmt::format("this is no state of a loader: {}", fmt::join(problems, "; ")));
  return state;
}

std::vector<std::string> problems_of(const LoaderState& state, const LoaderFit& fit) {
  Problems problems;
  compare_data(state, fit.own, problems);
  compare_ranks(state, fit, problems);
  if (state.num_shards != fit.own.num_shards) {
    problems.push_back(
        fmt::format("it is of a stream of {} parts, this one has {}", state.num_shards, fit.own.num_shards));
  }
  compare_readers(state, fit, problems);
  if (!fit.has_ranks_of(state) && state.source == "shards" && state.pass) {
    problems.push_back(fmt::format(
        "{} ranks have begun an epoch, each with parts of its own, that {} ranks cannot take over; let rank 0 read "
        "(dispatch_batches: true) or use order: elastic",
        state.num_processes, fit.own.num_processes));
  }
  return problems;
}

std::optional<BegunEpoch> place_for(const LoaderFit& fit, const LoaderState& state) {
  if (!state.pass) return std::nullopt;
  BegunEpoch place{.order = state.order, .pass = *state.pass};
  if (fit.has_ranks_of(state)) return place;
  place.pass.ahead_state = at::Tensor();  // of another rank
  if (!fit.reads_by_parts()) {
    place.pass.readers.clear();
    place.pass.next_reader = 0;
  }
  return place;
}

}  // namespace accel

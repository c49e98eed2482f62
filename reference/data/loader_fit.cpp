#include "reference/data/loader_fit.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace accel {
namespace {

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

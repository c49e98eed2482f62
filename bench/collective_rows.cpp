#include "bench/collective_rows.hpp"

#include <ATen/ops/ones.h>
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "reference/comm/group.hpp"
#include "reference/core/errors.hpp"
#include "reference/rank_local/call_site.hpp"
#include "reference/recorder/call_facts.hpp"
#include "reference/recorder/rank_recorder.hpp"
#include "tests/support/run_ranks.hpp"

namespace accel::bench {
namespace {

using testing::Backend;

// The buffers of one rank. `full` has the bytes that nccl-tests counts: all ranks' data for operations that gather or
// scatter. `part` is one rank's share of it, and `received` what all-to-all writes.
struct Buffers {
  at::Tensor full, part, received;
};

struct Operation {
  std::string name;
  double (*bus_factor)(double ranks);
  void (*call)(const Group& group, Buffers& buffers);
};

double share_of_others(double ranks) { return (ranks - 1) / ranks; }

// Factors: nccl-tests, doc/PERFORMANCE.md.
const std::vector<Operation>& operations() {
  static const std::vector<Operation> all = {
      {"all_reduce", [](double ranks) { return 2 * share_of_others(ranks); },
       [](const Group& group, Buffers& buffers) { group.all_reduce(buffers.full).wait(); }},
      {"all_gather", share_of_others,
       [](const Group& group, Buffers& buffers) { group.all_gather_into(buffers.full, buffers.part).wait(); }},
      {"reduce_scatter", share_of_others,
       [](const Group& group, Buffers& buffers) { group.reduce_scatter(buffers.part, buffers.full).wait(); }},
      {"broadcast", [](double) { return 1.0; },
       [](const Group& group, Buffers& buffers) { group.broadcast(buffers.full).wait(); }},
      {"all_to_all", share_of_others, [](const Group& group, Buffers& buffers) {
         std::vector<std::int64_t> equal_splits;
         group.process_group()->alltoall_base(buffers.received, buffers.full, equal_splits, equal_splits)->wait();
       }}};
  return all;
}

// A call of Gloo between threads takes up to a thousand times as long as a simulated one.
struct Calls {
  int batches, calls;
};

Calls calls_of(Backend backend, int ranks, std::int64_t bytes) {
  if (backend == Backend::kGlooSharedMemoryThreads || backend == Backend::kGlooUnrecordedThreads) return {50, 100};
  if (backend != Backend::kSim) return {3, ranks > 8 ? 1 : 5};
  if (bytes >= 1 << 20) return {ranks > 8 ? 7 : 70, 1};
  return {200, ranks > 8 ? 1 : 10};
}

// Seconds of one call, measured on rank 0. The first call is not counted: Gloo connects and allocates in it.
double seconds_of_call(const Operation& operation, Backend backend, int ranks, std::int64_t bytes) {
  double seconds = 0;
  const auto [batches, calls] = calls_of(backend, ranks, bytes);
  testing::run_ranks(backend, ranks, [&, batches = batches, calls = calls](RankContext& rank) {
    const auto count = std::max<std::int64_t>(bytes / 4 / ranks, 1);
    Buffers buffers{
        .full = at::ones({count * ranks}), .part = at::ones({count}), .received = at::empty({count * ranks})};
    operation.call(rank.world, buffers);
    rank.world.barrier();
    const auto measured = median_seconds(batches, calls, [&] { operation.call(rank.world, buffers); });
    rank.world.barrier();
    if (rank.rank == 0) seconds = measured;
  });
  return seconds;
}

// Seconds that one core needs to copy every rank's buffer once into memory that is already mapped: a lower bound for
// any collective on one core.
double seconds_of_copies(int ranks, std::int64_t bytes) {
  std::vector<std::vector<char>> from(ranks, std::vector<char>(bytes, 1)), to(ranks, std::vector<char>(bytes, 2));
  return median_seconds(9, 1, [&] {
    for (int rank = 0; rank < ranks; ++rank) std::memcpy(to[rank].data(), from[rank].data(), bytes);
    benchmark::ClobberMemory();
  });
}

// Seconds in which a rank records the begin and the end of a collective, and compares it with those of the other ranks.
double seconds_of_record(int ranks) {
  const auto record = recorder::JobRecord::create({.world_size = ranks, .num_local = ranks});
  std::vector<int> members(ranks);
  std::iota(members.begin(), members.end(), 0);
  std::vector<std::unique_ptr<recorder::RankRecorder>> recorders;
  for (const int rank : members) {
    recorders.push_back(std::make_unique<recorder::RankRecorder>(record, rank));
    recorders.back()->add_group("world", members);
  }
  const CallSite site(std::source_location::current(), "reduce(mean)");
  auto facts = recorder::facts_of(Collective::kAllReduce, /*reduce_op=*/0, /*root=*/-1);
  const std::int64_t sizes[] = {64, 10};
  recorder::add_tensor(facts, {.dtype = 6, .bytes = 2560, .sizes = sizes});
  return median_seconds(50, 1000,
                        [&] {
                          for (const auto& recorder : recorders) {
                            const auto call = recorder->begin_collective(0, facts);
                            if (!recorder->agrees(0, call)) throw InternalError("equal calls differ");
                            recorder->end(call);
                          }
                        }) /
         ranks;
}

// The command prints the seconds of one call.
double ask_python(const std::string& python, int ranks, std::int64_t bytes, int calls) {
  const auto command = fmt::format("{} {} {} {}", python, ranks, bytes, calls);
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  double seconds = 0;
  if (!pipe || std::fscanf(pipe.get(), "%lf", &seconds) != 1) throw Error("failed: " + command);
  return seconds;
}

std::string size_name(std::int64_t bytes) {
  if (bytes < 1 << 20) return fmt::format("{}_KiB", bytes >> 10);
  return fmt::format("{}_MiB", bytes >> 20);
}

}  // namespace

Rows collective_rows(const std::string& python) {
  Rows rows;
  const auto traffic = [](const Operation& operation, int ranks, std::int64_t bytes) {
    return Traffic{.bytes = static_cast<double>(bytes), .bus_factor = operation.bus_factor(ranks)};
  };
  for (const int ranks : {2, 8, 64}) {
    for (const std::int64_t bytes : {4 << 10, 1 << 20, 4 << 20}) {
      const auto size = fmt::format("/{}_ranks/{}", ranks, size_name(bytes));
      for (const auto& operation : operations()) {
        const auto gloo = operation.name + "/gloo_threads" + size;
        const bool is_reduced = operation.name == "all_reduce";
        rows.push_back({.name = operation.name + "/sim" + size,
                        .measure = [=, &operation] { return seconds_of_call(operation, Backend::kSim, ranks, bytes); },
                        .beside = is_reduced && bytes >= 1 << 20 ? "copies_on_one_core" + size : gloo,
                        .compared = is_reduced && ranks > 2 && bytes < 4 << 20,
                        .traffic = traffic(operation, ranks, bytes)});
        if (bytes > 1 << 20) continue;  // takes seconds per call
        rows.push_back(
            {.name = gloo,
             .measure = [=, &operation] { return seconds_of_call(operation, Backend::kGlooTcpThreads, ranks, bytes); },
             .traffic = traffic(operation, ranks, bytes)});
      }
      rows.push_back({.name = "copies_on_one_core" + size, .measure = [=] { return seconds_of_copies(ranks, bytes); }});
    }
  }
  // What recording and comparing costs.
  for (const int ranks : {1, 4})
    rows.push_back(
        {.name = fmt::format("recorded_call/{}_ranks", ranks), .measure = [=] { return seconds_of_record(ranks); }});
  for (const int ranks : {2, 4}) {
    const auto size = fmt::format("/{}_ranks/4_KiB", ranks);
    const auto& all_reduce = operations().front();
    rows.push_back({.name = "all_reduce/gloo_recorded" + size,
                    .measure =
                        [=, &all_reduce] {
                          return seconds_of_call(all_reduce, Backend::kGlooSharedMemoryThreads, ranks, 4 << 10);
                        },
                    .beside = "all_reduce/gloo_unrecorded" + size});
    rows.push_back({.name = "all_reduce/gloo_unrecorded" + size, .measure = [=, &all_reduce] {
                      return seconds_of_call(all_reduce, Backend::kGlooUnrecordedThreads, ranks, 4 << 10);
                    }});
  }
  if (!python.empty())
    rows.push_back({.name = "all_reduce/multi_threaded_pg/64_ranks/4_KiB",
                    .measure = [python] { return ask_python(python, 64, 4 << 10, 50); }});
  return rows;
}

}  // namespace accel::bench

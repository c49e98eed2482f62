// Simulated collectives beside real Gloo among threads of the same process, and beside plain copies of the same bytes.
#include <benchmark/benchmark.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdlib>
#include <cstring>

#include "tests/support/run_ranks.hpp"

namespace {

using accel::testing::Backend;

// One all-reduce of `bytes` over `ranks`; the time of a call is taken on rank 0, between barriers, and reported by hand, since
// the benchmark's loop cannot run on every rank at once.
void all_reduce(benchmark::State& state, Backend backend) {
  const int ranks = static_cast<int>(state.range(0));
  const std::int64_t bytes = state.range(1);
  const int calls = bytes > (1 << 18) ? 10 : 50;
  for (auto unused : state) {
    (void)unused;
    double seconds = 0;
    accel::testing::run_ranks(backend, ranks, [&](accel::RankContext& rank) {
      auto tensor = at::ones({bytes / 4});
      rank.world.all_reduce(tensor).wait();
      rank.world.barrier();
      const auto start = std::chrono::steady_clock::now();
      for (int call = 0; call < calls; ++call) rank.world.all_reduce(tensor).wait();
      rank.world.barrier();
      if (rank.rank == 0) seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / calls;
    });
    state.SetIterationTime(seconds);
  }
  state.counters["payload_GB/s"] = benchmark::Counter(static_cast<double>(ranks * bytes), benchmark::Counter::kIsIterationInvariantRate, benchmark::Counter::kIs1000);
}

// What one core needs to copy every rank's buffer once.
void copy(benchmark::State& state) {
  const int ranks = static_cast<int>(state.range(0));
  const std::int64_t bytes = state.range(1);
  std::vector<std::vector<char>> from(ranks, std::vector<char>(bytes, 1)), to(ranks, std::vector<char>(bytes));
  for (auto unused : state) {
    (void)unused;
    const auto start = std::chrono::steady_clock::now();
    for (int rank = 0; rank < ranks; ++rank) std::memcpy(to[rank].data(), from[rank].data(), bytes);
    benchmark::ClobberMemory();
    state.SetIterationTime(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  state.counters["payload_GB/s"] = benchmark::Counter(static_cast<double>(ranks * bytes), benchmark::Counter::kIsIterationInvariantRate, benchmark::Counter::kIs1000);
}

void sizes(benchmark::internal::Benchmark* bench) {
  for (const int ranks : {2, 8, 64}) {
    for (const int bytes : {4, 4 << 10, 1 << 20}) bench->Args({ranks, bytes});
  }
  bench->ArgNames({"ranks", "bytes"})->UseManualTime()->Iterations(3)->Unit(benchmark::kMillisecond);
}

BENCHMARK_CAPTURE(all_reduce, sim, Backend::kSim)->Apply(sizes);
BENCHMARK_CAPTURE(all_reduce, gloo_threads, Backend::kGlooThreads)->Apply(sizes);
BENCHMARK(copy)->Apply(sizes);

}  // namespace

int main(int argc, char** argv) {
  setenv("TORCH_FR_BUFFER_SIZE", "0", 1);  // LibTorch's flight recorder is not made for several Gloo groups on threads
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

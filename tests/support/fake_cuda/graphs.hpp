#pragma once

#include <cstdint>
#include <functional>
#include <vector>

/// CUDA graphs of simulated GPUs: kernels are counted, and copies happen when the graph is launched. Collectives cannot
/// be captured.
namespace accel::testing::fake_cuda {

struct Graph {
  void* stream = nullptr;  // on which the capture began
  std::int64_t launches = 0;
  std::vector<std::function<void()>> copies;
};

/// The graph that this thread captures, or null.
Graph* capturing();
void begin_capture(void* stream);
/// Ends the capture; the graph is never freed.
Graph* end_capture();

}  // namespace accel::testing::fake_cuda

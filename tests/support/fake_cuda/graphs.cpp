#include "tests/support/fake_cuda/graphs.hpp"

#include <cuda_runtime_api.h>

#include <utility>

#include "tests/support/fake_cuda/export.hpp"
#include "tests/support/fake_cuda/journal.hpp"

namespace accel::testing::fake_cuda {
namespace {

thread_local Graph* captured = nullptr;

}  // namespace

Graph* capturing() { return captured; }
void begin_capture(void* stream) { captured = new Graph{.stream = stream}; }
Graph* end_capture() { return std::exchange(captured, nullptr); }

}  // namespace accel::testing::fake_cuda

namespace fake = accel::testing::fake_cuda;

namespace {

cudaStreamCaptureStatus status_of(cudaStream_t stream) {
  const auto* graph = fake::capturing();
  return graph != nullptr && graph->stream == stream ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
}

}  // namespace

FAKE_CUDA_EXPORT cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return *status = status_of(stream), cudaSuccess;
}
FAKE_CUDA_EXPORT cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                                      unsigned long long* id, cudaGraph_t* graph,
                                                      const cudaGraphNode_t**, const cudaGraphEdgeData**,
                                                      std::size_t* num_dependencies) {
  *status = status_of(stream);
  if (id != nullptr) *id = 1;
  if (graph != nullptr) *graph = reinterpret_cast<cudaGraph_t>(fake::capturing());
  if (num_dependencies != nullptr) *num_dependencies = 0;
  return cudaSuccess;
}
FAKE_CUDA_EXPORT cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  return fake::begin_capture(stream), cudaSuccess;
}
FAKE_CUDA_EXPORT cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  return *graph = reinterpret_cast<cudaGraph_t>(fake::end_capture()), cudaSuccess;
}
FAKE_CUDA_EXPORT cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
FAKE_CUDA_EXPORT cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, std::size_t* count) {
  return *count = reinterpret_cast<fake::Graph*>(graph)->launches, cudaSuccess;
}
FAKE_CUDA_EXPORT cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph,
                                                           unsigned long long) {
  return *executable = reinterpret_cast<cudaGraphExec_t>(graph), cudaSuccess;
}
FAKE_CUDA_EXPORT cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t) {
  fake::count_launch();
  for (const auto& copy : reinterpret_cast<fake::Graph*>(executable)->copies) copy();
  return cudaSuccess;
}

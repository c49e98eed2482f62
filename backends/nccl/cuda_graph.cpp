#include <ATen/cuda/CUDAGraph.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <atomic>

#include "backends/nccl/nccl_backend.hpp"

namespace accel::nccl {
namespace {

std::atomic<int> num_captures = 0;

struct Capturing {
  Capturing() { ++num_captures; }
  ~Capturing() { --num_captures; }
};

class CudaGraph final : public DeviceGraph {
 public:
  // Only what this thread queues is restricted meanwhile: the watchdog of NCCL queries events on another thread.
  CudaGraph(c10::Device device, const std::function<void()>& body) {
    wait_for(device);
    const Capturing capturing;
    graph_.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    try {
      body();
    } catch (...) {
      end_failed_capture();
      throw;
    }
    graph_.capture_end();
  }

  void replay() override { graph_.replay(); }

 private:
  // The error of the body is the one to report. A capture that has failed ends with an error of its own.
  void end_failed_capture() noexcept {
    try {
      graph_.capture_end();
    } catch (const std::exception&) {
    }
  }

  at::cuda::CUDAGraph graph_;
};

}  // namespace

bool is_capturing() { return num_captures > 0; }

void offer_graphs(RankContext& context) {
  const c10::impl::VirtualGuardImpl streams(context.device.type());
  streams.exchangeStream(streams.getStreamFromGlobalPool(context.device));
  context.capture_graph = [device = context.device](const std::function<void()>& body) {
    return std::make_unique<CudaGraph>(device, body);
  };
}

}  // namespace accel::nccl

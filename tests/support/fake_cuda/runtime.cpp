// The part of the CUDA runtime that LibTorch calls, as a library to preload. Kernels do nothing; what is checked is
// where and in which order they are launched, what is copied, and when the host waits.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstring>
#include <thread>
#include <utility>

#include "tests/support/fake_cuda/export.hpp"
#include "tests/support/fake_cuda/graphs.hpp"
#include "tests/support/fake_cuda/journal.hpp"
#include "tests/support/fake_cuda/memory.hpp"
#include "tests/support/fake_cuda/stream.hpp"

namespace fake = accel::testing::fake_cuda;

namespace {

thread_local cudaError_t last_error = cudaSuccess;

cudaError_t failed(cudaError_t error) { return last_error = error; }

// As on a GPU: work is launched only on a stream of the current device.
cudaError_t launch(cudaStream_t stream) {
  if (fake::stream_of(stream).device() != fake::current_device()) {
    fake::log("launch on a stream of another device");
    return failed(cudaErrorInvalidResourceHandle);
  }
  if (auto* graph = fake::capturing())
    ++graph->launches;
  else
    fake::count_launch();
  return cudaSuccess;
}

cudaError_t wait(const fake::Completions& completions) {
  if (fake::capturing() != nullptr) return failed(cudaErrorStreamCaptureUnsupported);
  fake::count_host_wait();
  fake::wait_for(completions);
  return cudaSuccess;
}

cudaError_t copy(void* to, const void* from, std::size_t bytes, cudaStream_t stream) {
  if (auto* graph = fake::capturing()) {
    graph->copies.emplace_back([=] { fake::copy(to, from, bytes); });
    return cudaSuccess;
  }
  fake::wait_for(fake::stream_of(stream).pending());
  fake::copy(to, from, bytes);
  return cudaSuccess;
}

fake::Event& event_of(cudaEvent_t event) { return *reinterpret_cast<fake::Event*>(event); }

cudaError_t record(cudaEvent_t event, cudaStream_t stream) {
  if (event_of(event).device() != fake::stream_of(stream).device()) {
    fake::log("event recorded on a stream of another device");
    return failed(cudaErrorInvalidResourceHandle);
  }
  event_of(event).record(fake::stream_of(stream));
  return cudaSuccess;
}

cudaError_t new_stream(cudaStream_t* stream) {
  *stream = reinterpret_cast<cudaStream_t>(new fake::Stream(fake::current_device()));
  return cudaSuccess;
}

cudaError_t new_event(cudaEvent_t* event) {
  *event = reinterpret_cast<cudaEvent_t>(new fake::Event(fake::current_device()));
  return cudaSuccess;
}

}  // namespace

// --- devices --------------------------------------------------------------------------------------------------------

FAKE_CUDA_EXPORT cudaError_t cudaGetDeviceCount(int* count) {
  *count = fake::num_devices();
  return *count > 0 ? cudaSuccess : failed(cudaErrorNoDevice);
}
FAKE_CUDA_EXPORT cudaError_t cudaGetDevice(int* device) { return *device = fake::current_device(), cudaSuccess; }
FAKE_CUDA_EXPORT cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= fake::num_devices()) return failed(cudaErrorInvalidDevice);
  fake::set_current_device(device);
  return cudaSuccess;
}
FAKE_CUDA_EXPORT cudaError_t cudaRuntimeGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
FAKE_CUDA_EXPORT cudaError_t cudaDriverGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
FAKE_CUDA_EXPORT cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int /*device*/) {
  *properties = {};
  std::strcpy(properties->name, "simulated GPU");
  properties->major = 9;
  properties->multiProcessorCount = 132;
  properties->maxThreadsPerBlock = 1024;
  properties->maxThreadsPerMultiProcessor = 2048;
  properties->warpSize = 32;
  properties->totalGlobalMem = fake::device_capacity();
  properties->sharedMemPerBlock = 49152;
  properties->sharedMemPerBlockOptin = 232448;
  properties->sharedMemPerMultiprocessor = 233472;
  properties->regsPerBlock = 65536;
  properties->maxGridSize[0] = 2147483647;
  properties->maxGridSize[1] = properties->maxGridSize[2] = 65535;
  properties->maxThreadsDim[0] = properties->maxThreadsDim[1] = 1024;
  properties->maxThreadsDim[2] = 64;
  properties->textureAlignment = 512;
  properties->l2CacheSize = 50 << 20;
  return cudaSuccess;
}
FAKE_CUDA_EXPORT cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int /*device*/) {
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor: return *value = 9, cudaSuccess;
    case cudaDevAttrMultiProcessorCount: return *value = 132, cudaSuccess;
    case cudaDevAttrMaxThreadsPerBlock: return *value = 1024, cudaSuccess;
    case cudaDevAttrMaxThreadsPerMultiProcessor: return *value = 2048, cudaSuccess;
    case cudaDevAttrWarpSize: return *value = 32, cudaSuccess;
    default: return *value = 0, cudaSuccess;
  }
}
FAKE_CUDA_EXPORT cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return *least = 0, *greatest = -5, cudaSuccess;
}
FAKE_CUDA_EXPORT cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) { return *can = 1, cudaSuccess; }
FAKE_CUDA_EXPORT cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }
FAKE_CUDA_EXPORT cudaError_t cudaDeviceGetPCIBusId(char* id, int size, int device) {
  std::snprintf(id, static_cast<std::size_t>(size), "0000:%02x:00.0", device + 1);
  return cudaSuccess;
}
FAKE_CUDA_EXPORT cudaError_t cudaDeviceSynchronize() { return wait(fake::pending_on(fake::current_device())); }

// --- memory ---------------------------------------------------------------------------------------------------------

FAKE_CUDA_EXPORT cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *free = fake::free_bytes(fake::current_device());
  *total = fake::device_capacity();
  return cudaSuccess;
}
FAKE_CUDA_EXPORT cudaError_t cudaMalloc(void** pointer, std::size_t bytes) {
  *pointer = fake::allocate_on(fake::current_device(), bytes);
  return *pointer != nullptr ? cudaSuccess : failed(cudaErrorMemoryAllocation);
}
// Waits for the device, as the real one does.
FAKE_CUDA_EXPORT cudaError_t cudaFree(void* pointer) {
  if (const int device = fake::device_of(pointer); device >= 0) (void)wait(fake::pending_on(device));
  fake::free_on_device(pointer);
  return cudaSuccess;
}
FAKE_CUDA_EXPORT cudaError_t cudaHostAlloc(void** pointer, std::size_t bytes, unsigned /*flags*/) {
  return *pointer = fake::allocate_pinned(bytes), cudaSuccess;
}
FAKE_CUDA_EXPORT cudaError_t cudaFreeHost(void* pointer) { return fake::free_pinned(pointer), cudaSuccess; }
FAKE_CUDA_EXPORT cudaError_t cudaHostRegister(void* pointer, std::size_t bytes, unsigned /*flags*/) {
  return fake::pin(pointer, bytes), cudaSuccess;
}
// A copy from pageable memory returns when the memory may be reused, but LibTorch waits itself where the host needs the
// result, so only its calls of cudaStreamSynchronize count as waits.
FAKE_CUDA_EXPORT cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                                             cudaStream_t stream) {
  return copy(to, from, bytes, stream);
}
FAKE_CUDA_EXPORT cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, std::size_t bytes,
                                                 cudaStream_t stream) {
  return copy(to, from, bytes, stream);
}
FAKE_CUDA_EXPORT cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                                               std::size_t width, std::size_t height, cudaMemcpyKind,
                                               cudaStream_t stream) {
  for (std::size_t row = 0; row < height; ++row)
    copy(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width, stream);
  return cudaSuccess;
}
FAKE_CUDA_EXPORT cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
  fake::count_host_wait();
  return copy(to, from, bytes, nullptr);
}
FAKE_CUDA_EXPORT cudaError_t cudaMemcpyToSymbol(const void*, const void*, std::size_t, std::size_t, cudaMemcpyKind) {
  return cudaSuccess;
}
FAKE_CUDA_EXPORT cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  fake::wait_for(fake::stream_of(stream).pending());
  return std::memset(to, value, bytes), cudaSuccess;
}
FAKE_CUDA_EXPORT cudaError_t cudaMemset(void* to, int value, std::size_t bytes) {
  return cudaMemsetAsync(to, value, bytes, nullptr);
}
FAKE_CUDA_EXPORT cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  *attributes = {};
  const int device = fake::device_of(pointer);
  attributes->device = device;
  attributes->type = device >= 0                ? cudaMemoryTypeDevice
                     : fake::is_pinned(pointer) ? cudaMemoryTypeHost
                                                : cudaMemoryTypeUnregistered;
  return cudaSuccess;
}

// --- streams and events ---------------------------------------------------------------------------------------------

FAKE_CUDA_EXPORT cudaError_t cudaStreamCreate(cudaStream_t* stream) { return new_stream(stream); }
FAKE_CUDA_EXPORT cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  return new_stream(stream);
}
// A stream is not deleted: events may still name it.
FAKE_CUDA_EXPORT cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
FAKE_CUDA_EXPORT cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return fake::are_done(fake::stream_of(stream).pending()) ? cudaSuccess : cudaErrorNotReady;
}
FAKE_CUDA_EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return wait(fake::stream_of(stream).pending());
}
FAKE_CUDA_EXPORT cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned /*flags*/) {
  fake::stream_of(stream).add(event_of(event).pending());
  return cudaSuccess;
}
FAKE_CUDA_EXPORT cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void* data,
                                                   unsigned /*flags*/) {
  std::thread([pending = fake::stream_of(stream).pending(), stream, callback, data] {
    fake::wait_for(pending);
    callback(stream, cudaSuccess, data);
  }).detach();
  return cudaSuccess;
}

FAKE_CUDA_EXPORT cudaError_t cudaEventCreate(cudaEvent_t* event) { return new_event(event); }
FAKE_CUDA_EXPORT cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return new_event(event); }
FAKE_CUDA_EXPORT cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete &event_of(event), cudaSuccess; }
FAKE_CUDA_EXPORT cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) { return record(event, stream); }
FAKE_CUDA_EXPORT cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  return record(event, stream);
}
FAKE_CUDA_EXPORT cudaError_t cudaEventQuery(cudaEvent_t event) {
  return fake::are_done(event_of(event).pending()) ? cudaSuccess : cudaErrorNotReady;
}
FAKE_CUDA_EXPORT cudaError_t cudaEventSynchronize(cudaEvent_t event) { return wait(event_of(event).pending()); }
FAKE_CUDA_EXPORT cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  return *milliseconds = 1, cudaSuccess;
}

// --- kernels --------------------------------------------------------------------------------------------------------

FAKE_CUDA_EXPORT cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, std::size_t, cudaStream_t stream) {
  return launch(stream);
}
FAKE_CUDA_EXPORT cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void*, void**) {
  return launch(config->stream);
}
FAKE_CUDA_EXPORT cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, std::size_t, cudaStream_t stream) {
  return launch(stream);
}
FAKE_CUDA_EXPORT cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  attributes->binaryVersion = attributes->ptxVersion = 90;
  return cudaSuccess;
}
FAKE_CUDA_EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, std::size_t) {
  return *blocks = 2, cudaSuccess;
}
FAKE_CUDA_EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int,
                                                                                    std::size_t, unsigned) {
  return *blocks = 2, cudaSuccess;
}
FAKE_CUDA_EXPORT void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
FAKE_CUDA_EXPORT unsigned __cudaPushCallConfiguration(dim3, dim3, std::size_t, void*) { return 0; }
FAKE_CUDA_EXPORT cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, std::size_t*, void* stream) {
  return *static_cast<cudaStream_t*>(stream) = nullptr, cudaSuccess;
}
FAKE_CUDA_EXPORT cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  return *kernel = static_cast<cudaKernel_t>(const_cast<void*>(function)), cudaSuccess;
}

// --- errors ---------------------------------------------------------------------------------------------------------

FAKE_CUDA_EXPORT cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
FAKE_CUDA_EXPORT cudaError_t cudaPeekAtLastError() { return last_error; }
FAKE_CUDA_EXPORT const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorInvalidResourceHandle: return "invalid resource handle";
    case cudaErrorNotReady: return "device not ready";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    default: return "error of the simulated CUDA runtime";
  }
}
FAKE_CUDA_EXPORT const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaErrorUnknown";
}
FAKE_CUDA_EXPORT cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** function, unsigned,
                                                              unsigned long long,
                                                              cudaDriverEntryPointQueryResult* result) {
  *function = nullptr;
  if (result != nullptr) *result = cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

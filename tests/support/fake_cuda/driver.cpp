// libcuda.so.1 of the simulated GPUs: LibTorch's NVRTC library needs it to be loaded.
#include "tests/support/fake_cuda/export.hpp"

FAKE_CUDA_EXPORT int cuDevicePrimaryCtxGetState(int /*device*/, unsigned* flags, int* active) {
  *flags = 0;
  *active = 1;
  return 0;
}

#define STUB(name) \
  FAKE_CUDA_EXPORT int name() { return 0; }
STUB(cuCtxGetCurrent)
STUB(cuCtxSetCurrent)
STUB(cuDeviceGet)
STUB(cuDeviceGetAttribute)
STUB(cuDeviceGetCount)
STUB(cuDevicePrimaryCtxRetain)
STUB(cuDriverGetVersion)
STUB(cuFuncGetAttribute)
STUB(cuFuncSetAttribute)
STUB(cuFuncSetCacheConfig)
STUB(cuGetErrorString)
STUB(cuGetProcAddress)
STUB(cuGetProcAddress_v2)
STUB(cuInit)
STUB(cuLaunchCooperativeKernel)
STUB(cuLaunchKernel)
STUB(cuLinkAddData_v2)
STUB(cuLinkComplete)
STUB(cuLinkCreate_v2)
STUB(cuModuleGetFunction)
STUB(cuModuleLoad)
STUB(cuModuleLoadData)
STUB(cuModuleLoadDataEx)
STUB(cuModuleUnload)
STUB(cuOccupancyMaxActiveBlocksPerMultiprocessor)
STUB(cuPointerGetAttribute)
STUB(cuTensorMapEncodeTiled)

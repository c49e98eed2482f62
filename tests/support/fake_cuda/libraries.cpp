// The calls of cuBLAS whose results LibTorch uses. All others are generated stubs, which return success.
#include <cublasLt.h>
#include <cublas_v2.h>

#include "tests/support/fake_cuda/export.hpp"

namespace {
int any_handle = 0;
}

FAKE_CUDA_EXPORT cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  return *handle = reinterpret_cast<cublasHandle_t>(&any_handle), CUBLAS_STATUS_SUCCESS;
}
FAKE_CUDA_EXPORT cublasStatus_t cublasGetVersion_v2(cublasHandle_t, int* version) {
  return *version = CUBLAS_VERSION, CUBLAS_STATUS_SUCCESS;
}
FAKE_CUDA_EXPORT cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t, cublasPointerMode_t* mode) {
  return *mode = CUBLAS_POINTER_MODE_HOST, CUBLAS_STATUS_SUCCESS;
}
FAKE_CUDA_EXPORT cublasStatus_t cublasGetMathMode(cublasHandle_t, cublasMath_t* mode) {
  return *mode = CUBLAS_DEFAULT_MATH, CUBLAS_STATUS_SUCCESS;
}
FAKE_CUDA_EXPORT cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                                               cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                                               cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                                               cublasLtMatmulPreference_t, int,
                                                               cublasLtMatmulHeuristicResult_t* result, int* count) {
  *result = {};
  return *count = 1, CUBLAS_STATUS_SUCCESS;
}

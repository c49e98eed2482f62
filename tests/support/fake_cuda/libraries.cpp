// The calls of cuBLAS and cuDNN whose results LibTorch uses. All others are generated stubs, which return success.
#include <cublasLt.h>
#include <cublas_v2.h>
#include <cudnn.h>

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

// Of cuDNN's two interfaces for convolutions, LibTorch uses the older one if TORCH_CUDNN_V8_API_DISABLED is set.
namespace {

template <typename Performance>
cudnnStatus_t first_algorithm(int* count, Performance* algorithms) {
  *algorithms = {};
  return *count = 1, CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t no_bytes(std::size_t* bytes) { return *bytes = 0, CUDNN_STATUS_SUCCESS; }

}  // namespace

FAKE_CUDA_EXPORT std::size_t cudnnGetVersion() { return CUDNN_VERSION; }
FAKE_CUDA_EXPORT cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(cudnnHandle_t, cudnnTensorDescriptor_t,
                                                                      cudnnFilterDescriptor_t,
                                                                      cudnnConvolutionDescriptor_t,
                                                                      cudnnTensorDescriptor_t, int, int* count,
                                                                      cudnnConvolutionFwdAlgoPerf_t* algorithms) {
  return first_algorithm(count, algorithms);
}
FAKE_CUDA_EXPORT cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(
    cudnnHandle_t, cudnnFilterDescriptor_t, cudnnTensorDescriptor_t, cudnnConvolutionDescriptor_t,
    cudnnTensorDescriptor_t, int, int* count, cudnnConvolutionBwdDataAlgoPerf_t* algorithms) {
  return first_algorithm(count, algorithms);
}
FAKE_CUDA_EXPORT cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(
    cudnnHandle_t, cudnnTensorDescriptor_t, cudnnTensorDescriptor_t, cudnnConvolutionDescriptor_t,
    cudnnFilterDescriptor_t, int, int* count, cudnnConvolutionBwdFilterAlgoPerf_t* algorithms) {
  return first_algorithm(count, algorithms);
}
FAKE_CUDA_EXPORT cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(cudnnHandle_t, cudnnTensorDescriptor_t,
                                                                       cudnnFilterDescriptor_t,
                                                                       cudnnConvolutionDescriptor_t,
                                                                       cudnnTensorDescriptor_t,
                                                                       cudnnConvolutionFwdAlgo_t, std::size_t* bytes) {
  return no_bytes(bytes);
}
FAKE_CUDA_EXPORT cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(
    cudnnHandle_t, cudnnFilterDescriptor_t, cudnnTensorDescriptor_t, cudnnConvolutionDescriptor_t,
    cudnnTensorDescriptor_t, cudnnConvolutionBwdDataAlgo_t, std::size_t* bytes) {
  return no_bytes(bytes);
}
FAKE_CUDA_EXPORT cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(
    cudnnHandle_t, cudnnTensorDescriptor_t, cudnnTensorDescriptor_t, cudnnConvolutionDescriptor_t,
    cudnnFilterDescriptor_t, cudnnConvolutionBwdFilterAlgo_t, std::size_t* bytes) {
  return no_bytes(bytes);
}

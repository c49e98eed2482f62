# Every outside library, as an imported target; all that are missing are reported together, with their packages.
include(AccelLibraryDependencies)

macro(accel_check_dependencies)
  if(accel_problems)
    list(JOIN accel_problems "\n" accel_problems)
    message(FATAL_ERROR "${accel_problems}\n./dev setup installs all of them")
  endif()
endmacro()

accel_require(GTest "libgtest-dev libgmock-dev")
if(ACCEL_ENGINE_ONLY)
  accel_check_dependencies()
  return()
endif()
accel_require(nlohmann_json nlohmann-json3-dev)
accel_require(CLI11 libcli11-dev)
accel_require(benchmark libbenchmark-dev)
accel_require(rapidcheck librapidcheck-dev)
find_library(ACCEL_JEMALLOC jemalloc)
if(NOT ACCEL_JEMALLOC)
  list(APPEND accel_problems "jemalloc was not found: on Debian 12, apt-get install libjemalloc-dev")
endif()
find_path(ACCEL_GLOO_INCLUDE gloo/algorithm.h)
if(NOT ACCEL_GLOO_INCLUDE)
  list(APPEND accel_problems "Gloo's headers were not found: on Debian 12, apt-get install libgloo-dev")
endif()
accel_check_dependencies()

if(NOT ACCEL_TORCH_VERSION MATCHES "^2\\.11\\.")
  message(STATUS "LibTorch in ${ACCEL_TORCH_ROOT} is ${ACCEL_TORCH_VERSION}, not 2.11: probing its c10d")
  include(CheckCXXSourceCompiles)
  set(CMAKE_REQUIRED_LIBRARIES Torch::cpu)
  set(CMAKE_REQUIRED_INCLUDES ${ACCEL_GLOO_INCLUDE})
  check_cxx_source_compiles("
    #include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
    #include <torch/csrc/distributed/c10d/reducer.hpp>
    int main() { return sizeof(c10d::Reducer(std::vector<at::Tensor>{}, {}, nullptr, {}, 0, false, false, {}, 0, false, false, {})) == 0; }"
    ACCEL_TORCH_FITS)
  if(NOT ACCEL_TORCH_FITS)
    message(FATAL_ERROR "LibTorch in ${ACCEL_TORCH_ROOT} does not have 2.11's c10d::Reducer or ProcessGroupGloo; use LibTorch 2.11.0")
  endif()
endif()

# Versions of LibTorch. The library uses parts of LibTorch that are not public, so another version could compile and compute
# something else.

# The versions with which all tests have passed, as listed in reference/guide/getting_started.md.
set(ACCEL_TORCH_VERSIONS 2.11 2.15)

# Tries a version that is none of them: compiles and runs torch_probe.cpp.
function(accel_probe_torch)
  list(JOIN ACCEL_TORCH_VERSIONS ", " versions)
  set(unknown "LibTorch in ${ACCEL_TORCH_ROOT} is ${ACCEL_TORCH_VERSION}. The tests of accel pass with ${versions}")
  message(STATUS "Trying LibTorch ${ACCEL_TORCH_VERSION}")
  try_run(exit_code compiled
    SOURCES ${accel_SOURCE_DIR}/configs/cmake/torch_probe.cpp ${accel_SOURCE_DIR}/backends/gloo/layout_check.cpp
            ${accel_SOURCE_DIR}/reference/core/format.cpp ${accel_SOURCE_DIR}/reference/rank_local/interpose.cpp
            ${accel_SOURCE_DIR}/reference/rank_local/libc_random.cpp ${accel_SOURCE_DIR}/reference/rank_local/random.cpp
    CMAKE_FLAGS -DINCLUDE_DIRECTORIES=${accel_SOURCE_DIR} LINK_OPTIONS -rdynamic
    LINK_LIBRARIES Torch::cpu Threads::Threads ${CMAKE_DL_LIBS}
    CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON
    COMPILE_OUTPUT_VARIABLE compiler_output RUN_OUTPUT_VARIABLE output)
  if(NOT compiled)
    string(REGEX MATCH "[^\n]*(error|undefined)[^\n]*" error "${compiler_output}")
    message(FATAL_ERROR "${unknown}, and this version does not compile with it:\n${error}")
  elseif(NOT exit_code EQUAL 0)
    message(FATAL_ERROR "${unknown}, and it does not work with this version (exit code ${exit_code}):\n${output}")
  endif()
  message(WARNING "${unknown}. It was tried: it compiles, and the parts of LibTorch that accel replaces are as expected. "
    "Run ./dev test before you rely on it.\n${output}")
endfunction()

string(REGEX MATCH "^[0-9]+\\.[0-9]+" minor "${ACCEL_TORCH_VERSION}")
if(NOT minor IN_LIST ACCEL_TORCH_VERSIONS)
  accel_probe_torch()
endif()

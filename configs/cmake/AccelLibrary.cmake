# Includes start at the root, in the source tree and in an installed package; C++20 comes with them.
function(accel_root_includes target scope)
  target_include_directories(${target} ${scope} $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}> $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/reference/public>
    $<INSTALL_INTERFACE:include> $<INSTALL_INTERFACE:include/accel>)
  target_compile_features(${target} ${scope} cxx_std_20)
endfunction()

# accel_precompile(TARGET): LibTorch's headers, compiled once for all that is no test. Where each source is compiled for itself there is none,
# so that a missing include shows.
function(accel_precompile target)
  if(NOT ACCEL_UNITY OR ACCEL_TIDY)
    return()
  endif()
  # One way to address memory for all: programs would have -fPIE.
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(${target} PRIVATE -fPIC)
  if(target STREQUAL "accel_core")
    target_precompile_headers(${target} PRIVATE ${CMAKE_SOURCE_DIR}/configs/cmake/precompiled.hpp)
  else()
    target_precompile_headers(${target} REUSE_FROM accel_core)
  endif()
endfunction()

# accel_library(NAME SOURCES a.cpp ... [DEPS accel::b ...] [TORCH])
# A static library accel_NAME, used by its alias accel::NAME. Edges follow configs/layers.yaml. TORCH: its sources include LibTorch.
function(accel_library name)
  cmake_parse_arguments(ARG "TORCH" "" "SOURCES;DEPS" ${ARGN})
  add_library(accel_${name} STATIC ${ARG_SOURCES})
  add_library(accel::${name} ALIAS accel_${name})
  set_target_properties(accel_${name} PROPERTIES EXPORT_NAME ${name})
  accel_root_includes(accel_${name} PUBLIC)
  target_link_libraries(accel_${name} PUBLIC ${ARG_DEPS})
  if(ARG_TORCH)
    accel_precompile(accel_${name})
  endif()
  if(ACCEL_TIDY)
    set_target_properties(accel_${name} PROPERTIES CXX_CLANG_TIDY "${ACCEL_CLANG_TIDY}")
  endif()
endfunction()

# accel_program(NAME SOURCES ... [DEPS ...]): a program that keeps one default generator and one autocast cache per
# rank, so it exports its symbols (Note [Interposition] in reference/core/interpose.cpp).
function(accel_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  string(REPLACE "-" "_" target ${name})
  add_executable(${target} ${ARG_SOURCES})
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ${name} ENABLE_EXPORTS ON)
  target_link_libraries(${target} PRIVATE ${ARG_DEPS})
endfunction()

# accel_compile_as_test(TARGET ...): without optimisation, with the one precompiled torch/torch.h of all that serves tests alone.
function(accel_compile_as_test)
  foreach(target IN LISTS ARGN)
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)  # flags as of the precompiled header
    target_compile_options(${target} PRIVATE ${ACCEL_TEST_OPTIONS})
    target_precompile_headers(${target} REUSE_FROM accel_test_pch)
    target_link_libraries(${target} PRIVATE accel_test_pch)
  endforeach()
endfunction()

# accel_test(NAME SOURCES ... [DEPS ...] [TORCH]): a GoogleTest program and its ctest entry.
# TORCH tests share one precompiled torch/torch.h.
function(accel_test name)
  cmake_parse_arguments(ARG "TORCH" "TIMEOUT" "SOURCES;DEPS" ${ARGN})
  accel_program(${name} SOURCES ${ARG_SOURCES} DEPS ${ARG_DEPS} GTest::gmock GTest::gtest)
  string(REPLACE "-" "_" target ${name})
  if(ARG_TORCH)
    accel_compile_as_test(${target})
  else()
    target_compile_options(${target} PRIVATE ${ACCEL_TEST_OPTIONS})
    target_link_libraries(${target} PRIVATE GTest::gtest_main)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 600)
  endif()
  add_test(NAME ${name} COMMAND ${target})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT}
    ENVIRONMENT "ACCEL_SOURCE_DIR=${CMAKE_SOURCE_DIR};ACCEL_BIN_DIR=${CMAKE_RUNTIME_OUTPUT_DIRECTORY};OMP_NUM_THREADS=1${ACCEL_TEST_ENVIRONMENT}")
endfunction()

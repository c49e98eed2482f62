# accel_root_includes(TARGET SCOPE): lets includes start at the root, in the source tree and in an installed package, and
# requires C++20.
function(accel_root_includes target scope)
  target_include_directories(${target} ${scope} $<BUILD_INTERFACE:${accel_SOURCE_DIR}> $<BUILD_INTERFACE:${accel_SOURCE_DIR}/reference/public>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/accel>)
  target_compile_features(${target} ${scope} cxx_std_20)
endfunction()

# accel_precompile(TARGET): precompiles LibTorch's headers once for all targets that are not tests. Without
# ACCEL_PRECOMPILE missing includes are found.
function(accel_precompile target)
  if(NOT ACCEL_PRECOMPILE)
    return()
  endif()
  # A precompiled header requires equal flags everywhere, and CMake would give programs -fPIE instead of -fPIC.
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(${target} PRIVATE -fPIC)
  if(target STREQUAL "accel_core")
    target_precompile_headers(${target} PRIVATE ${accel_SOURCE_DIR}/configs/cmake/precompiled.hpp)
  else()
    target_precompile_headers(${target} REUSE_FROM accel_core)
  endif()
endfunction()

# Libraries and programs whose code runs outside of training steps. They get -O1, which compiles in a quarter less time than
# -O2.
set(ACCEL_COLD accel runtime accelerator bench_program checkpoint command_line config experiments launch launch_command offload
  profiler sim-calibrate sim-run sim_faults sim_network sim_report sources terminal tracking training_state)
function(accel_compile_cold target name)
  if(name IN_LIST ACCEL_COLD AND CMAKE_BUILD_TYPE STREQUAL "Release")
    target_compile_options(${target} PRIVATE -O1)
  endif()
endfunction()

# accel_library(NAME [IN folder] SOURCES a.cpp ... [DEPS accel::b ...] [TORCH])
# Adds a static library accel_NAME, to be linked by its alias accel::NAME. DEPS must follow configs/layers.yaml. IN: the
# folder of its sources. TORCH: its sources include LibTorch.
function(accel_library name)
  cmake_parse_arguments(ARG "TORCH" "IN" "SOURCES;DEPS" ${ARGN})
  if(ARG_IN)
    list(TRANSFORM ARG_SOURCES PREPEND ${ARG_IN}/)
  endif()
  add_library(accel_${name} STATIC ${ARG_SOURCES})
  if(NOT ACCEL_TORCH)
    set_target_properties(accel_${name} PROPERTIES EXCLUDE_FROM_ALL ON)  # such a build is for single programs
  endif()
  add_library(accel::${name} ALIAS accel_${name})
  set_target_properties(accel_${name} PROPERTIES EXPORT_NAME ${name})
  accel_root_includes(accel_${name} PUBLIC)
  target_link_libraries(accel_${name} PUBLIC ${ARG_DEPS})
  accel_compile_cold(accel_${name} ${name})
  if(ARG_TORCH)
    accel_precompile(accel_${name})
  endif()
endfunction()

# accel_program(NAME [IN folder] SOURCES ... [DEPS ...] [TORCH]): adds a program that keeps one default generator and one
# autocast cache per rank, so it exports its symbols (Note [Interposition] in reference/rank_local/interpose.cpp). TORCH as for a
# library.
function(accel_program name)
  cmake_parse_arguments(ARG "TORCH" "IN" "SOURCES;DEPS" ${ARGN})
  if(ARG_IN)
    list(TRANSFORM ARG_SOURCES PREPEND ${ARG_IN}/)
  endif()
  string(REPLACE "-" "_" target ${name})
  add_executable(${target} ${ARG_SOURCES})
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ${name} ENABLE_EXPORTS ON)
  target_link_libraries(${target} PRIVATE ${ARG_DEPS})
  accel_compile_cold(${target} ${name})
  if(ARG_TORCH)
    accel_precompile(${target})
  endif()
endfunction()

# accel_compile_as_test(TARGET ...): compiles without optimization and with the precompiled tests/support/torch.hpp that all
# test code shares.
function(accel_compile_as_test)
  foreach(target IN LISTS ARGN)
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)  # same flags as the precompiled header
    target_compile_options(${target} PRIVATE ${ACCEL_TEST_OPTIONS})
    target_precompile_headers(${target} REUSE_FROM accel_test_pch)
    target_link_libraries(${target} PRIVATE accel_test_pch)
  endforeach()
endfunction()

# Adds a GoogleTest program. TORCH: uses the precompiled tests/support/torch.hpp that tests share.
function(accel_test_program name)
  cmake_parse_arguments(ARG "TORCH" "TIMEOUT" "SOURCES;DEPS" ${ARGN})
  accel_program(${name} SOURCES ${ARG_SOURCES} DEPS ${ARG_DEPS} GTest::gmock GTest::gtest)
  if(ARG_TORCH)
    accel_compile_as_test(${name})
  else()
    target_compile_options(${name} PRIVATE ${ACCEL_TEST_OPTIONS})
    target_link_libraries(${name} PRIVATE GTest::gtest_main)
  endif()
endfunction()

# Entries that compare simulated ranks, or Gloo over another transport, with real Gloo ranks, outside of
# properties/equivalence/.
set(ACCEL_EQUIVALENCE collectives_laws equivalence_laws equivalence_test sharding_laws trace_equality_test transport_laws)
# accel_seconds_of_slow_test(NAME VARIABLE): stores the seconds of an entry in tests/slow_tests.txt, or 0.
set_property(DIRECTORY ${accel_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${accel_SOURCE_DIR}/tests/slow_tests.txt)
file(STRINGS ${accel_SOURCE_DIR}/tests/slow_tests.txt ACCEL_SLOW_TESTS REGEX "^[^#]")
function(accel_seconds_of_slow_test name variable)
  set(seconds ${ACCEL_SLOW_TESTS})
  list(FILTER seconds INCLUDE REGEX "^${name} ")
  list(TRANSFORM seconds REPLACE "^${name} ([0-9]+)$" "\\1")
  if(NOT seconds)
    set(seconds 0)
  elseif(NOT seconds MATCHES "^[0-9]+$")
    message(FATAL_ERROR "tests/slow_tests.txt: ${name} has the seconds '${seconds}'; expected one line '${name} SECONDS'")
  endif()
  set(${variable} ${seconds} PARENT_SCOPE)
endfunction()

# Tests of bits or rules of LibTorch 2.11 that later versions lack; a build against another version leaves them out.
set(ACCEL_TESTS_OF_2_11
  Backends/RecordedRandomNumbersTest.EveryRankDrawsWhatPythonDrew/*  # torch.rand in float16 and bfloat16
  OptimizersTest.OptionsOfAnotherOptimizerAreAnArgumentError)        # add_param_group drops these options

# accel_test_filter(SUITES VARIABLE): stores the argument of a test program that runs these suites, or all if SUITES is empty.
function(accel_test_filter suites variable)
  set(filter ${suites})
  if(ACCEL_TORCH_VERSION AND NOT ACCEL_TORCH_VERSION MATCHES "^2\\.11\\.")
    list(JOIN ACCEL_TESTS_OF_2_11 ":" left_out)
    string(APPEND filter "-${left_out}")
  endif()
  if(filter)
    string(PREPEND filter "--gtest_filter=")
  endif()
  set(${variable} "${filter}" PARENT_SCOPE)
endfunction()

# accel_test_labels(NAME VARIABLE SOURCES ...): stores the labels of a ctest entry, for `./dev test --label` and
# `ctest -L`. The folder of the first source decides; `law` is added for any source *_laws.cpp.
function(accel_test_labels name variable)
  list(GET ARGN 0 source)
  cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR} NORMALIZE)
  cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${accel_SOURCE_DIR})
  set(labels unit)
  if(source MATCHES "^properties/oracle/")
    set(labels oracle)
  elseif(source MATCHES "^properties/(equivalence|regressions)/|^properties/[^/]*$")
    set(labels law)
  elseif(source MATCHES "^tests/(programs|ported)/")
    set(labels program)
  endif()
  if("${ARGN}" MATCHES "_laws\\.cpp" AND NOT labels STREQUAL "law")
    list(APPEND labels law)
  endif()
  if(source MATCHES "^properties/equivalence/" OR name IN_LIST ACCEL_EQUIVALENCE)
    list(APPEND labels equivalence)
  endif()
  if(source MATCHES "/gpu/|_gpu_test\\.cpp$")
    list(APPEND labels gpu)
  endif()
  accel_seconds_of_slow_test(${name} seconds)
  if(seconds GREATER 0)
    list(APPEND labels slow)
  endif()
  set(${variable} "${labels}" PARENT_SCOPE)
endfunction()

function(accel_test_entry name program timeout labels)
  add_test(NAME ${name} COMMAND ${program} ${ARGN})
  if(timeout)  # otherwise that of `./dev test`, which allows more with --long
    set_tests_properties(${name} PROPERTIES TIMEOUT ${timeout})
  endif()
  # The slowest entries start first. Without COST the first run of a build would end with one of them alone.
  accel_seconds_of_slow_test(${name} seconds)
  if(seconds GREATER 0)
    set_tests_properties(${name} PROPERTIES COST ${seconds})
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${labels}"
    ENVIRONMENT "ACCEL_TEST_NAME=${name};ACCEL_SOURCE_DIR=${accel_SOURCE_DIR};ACCEL_BIN_DIR=${CMAKE_RUNTIME_OUTPUT_DIRECTORY};OMP_NUM_THREADS=1${ACCEL_TEST_ENVIRONMENT}")
endfunction()

# accel_test(NAME SOURCES ... [DEPS ...] [TORCH] [TIMEOUT seconds]): adds a program and its ctest entry.
function(accel_test name)
  cmake_parse_arguments(ARG "TORCH" "TIMEOUT" "SOURCES;DEPS" ${ARGN})
  accel_test_program(${name} ${ARGN})
  accel_test_labels(${name} labels ${ARG_SOURCES})
  accel_test_filter("" filter)
  accel_test_entry(${name} ${name} "${ARG_TIMEOUT}" "${labels}" ${filter})
endfunction()

# accel_suites(SOURCE VARIABLE): stores the names of the test suites in a source.
function(accel_suites source variable)
  file(STRINGS ${source} suites REGEX "^TEST(_F|_P)?\\(")
  list(TRANSFORM suites REPLACE "^TEST[_FP]*\\(([A-Za-z0-9_]+),.*" "\\1")
  list(REMOVE_DUPLICATES suites)
  set(${variable} "${suites}" PARENT_SCOPE)
endfunction()

# accel_tests(PROGRAM TESTS a b ... [SOURCES ...] [DEPS ...] [TORCH] [TIMEOUT seconds])
# Adds one program with one ctest entry per a.cpp, b.cpp, ..., which runs the suites of that file. One program is faster to
# build than many, because most of the time goes into headers. SOURCES may contain more tests of these suites: the entry of a
# suite runs all of its tests.
function(accel_tests program)
  cmake_parse_arguments(ARG "TORCH" "TIMEOUT" "TESTS;SOURCES;DEPS" ${ARGN})
  set(torch)
  if(ARG_TORCH)
    set(torch TORCH)
  endif()
  list(TRANSFORM ARG_TESTS APPEND .cpp OUTPUT_VARIABLE sources)
  accel_test_program(${program} SOURCES ${sources} ${ARG_SOURCES} DEPS ${ARG_DEPS} ${torch})
  set(suites_of_program)
  foreach(test source IN ZIP_LISTS ARG_TESTS sources)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source})
    accel_suites(${source} suites)
    if(NOT suites)
      message(FATAL_ERROR "${source} contains no TEST; expected at least one")
    endif()
    foreach(suite IN LISTS suites)
      if(suite IN_LIST suites_of_program)
        message(FATAL_ERROR "${program} has the suite ${suite} in two files, so two ctest entries would run it; rename one of them")
      endif()
    endforeach()
    list(APPEND suites_of_program ${suites})
    list(TRANSFORM suites REPLACE "(.+)" "\\1.*:*/\\1.*")
    list(JOIN suites ":" suites)
    accel_test_filter("${suites}" filter)
    get_filename_component(name ${test} NAME)
    accel_test_labels(${name} labels ${source})
    accel_test_entry(${name} ${program} "${ARG_TIMEOUT}" "${labels}" ${filter})
  endforeach()
  foreach(source IN LISTS ARG_SOURCES)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source})
    accel_suites(${source} suites)
    list(REMOVE_ITEM suites ${suites_of_program})
    if(suites)
      message(FATAL_ERROR "${source} has suites that no ctest entry runs: ${suites}; move the file to TESTS")
    endif()
  endforeach()
endfunction()

option(ACCEL_CUDA "Build the CUDA lane (torch_cuda, NCCL)" OFF)
option(ACCEL_ENGINE_ONLY "Build only code that includes no torch header: core's errors and the simulation engine" OFF)
option(ACCEL_DEBUG_CHECKS "Enable libstdc++ assertions" OFF)
option(ACCEL_FUZZ "Build libFuzzer programs with the address and undefined-behavior sanitizers (Clang only)" OFF)
option(ACCEL_UNITY "Compile sixteen sources of a target as one, in a quarter of the time, since most of it goes into headers" ON)
option(ACCEL_PRECOMPILE "Precompile LibTorch's headers; a source then compiles in a fifth of the time" ON)
set(ACCEL_SEPARATE_SOURCES "" CACHE STRING "Sources, relative to the root, that no unity unit includes, so that a change of one builds quickly")
set(ACCEL_SANITIZE "" CACHE STRING "Comma-separated sanitizers: address,undefined or thread")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_UNITY_BUILD ${ACCEL_UNITY})
set(CMAKE_UNITY_BUILD_BATCH_SIZE 16)
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)  # installed programs find LibTorch where the build found it
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
# Without NDEBUG some LibTorch classes have additional members, but the LibTorch libraries are built with NDEBUG.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -g1 -DNDEBUG")

# -ffp-contract=off: a multiplication and an addition must round twice, as in the libraries whose bits tests compare with.
add_compile_options(-Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers -ffp-contract=off -fmacro-prefix-map=${CMAKE_SOURCE_DIR}/=)
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  add_compile_options(-Wthread-safety -Werror=thread-safety)
  add_compile_options("SHELL:-Xclang -fno-pch-timestamp")  # so that ccache recognizes a precompiled header
else()
  # Delays GCC's garbage collection until 1.5 GB. It took a quarter of the time of a unit with LibTorch's headers.
  add_compile_options("SHELL:--param ggc-min-expand=200" "SHELL:--param ggc-min-heapsize=1500000")
endif()
if(ACCEL_DEBUG_CHECKS)
  add_compile_definitions(_GLIBCXX_ASSERTIONS)
endif()
if(ACCEL_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "ACCEL_FUZZ needs Clang's libFuzzer; use the preset fuzz (apt-get install clang-16)")
  endif()
  set(ACCEL_SANITIZE "address,undefined")
  add_compile_options(-fsanitize=fuzzer-no-link -fno-sanitize=vptr)
endif()
if(ACCEL_SANITIZE)
  add_compile_definitions(ACCEL_SANITIZED)
  string(REPLACE "," ";" sanitizers "${ACCEL_SANITIZE}")
  foreach(sanitizer IN LISTS sanitizers)
    add_compile_options(-fsanitize=${sanitizer} -fno-omit-frame-pointer)
    add_link_options(-fsanitize=${sanitizer})
    string(APPEND ACCEL_SANITIZE_FLAGS " -fsanitize=${sanitizer}")  # for programs built against the installed package
  endforeach()
endif()

# One test requests more memory than exists, on purpose, and LibTorch leaks its writer after a failed write.
if(ACCEL_SANITIZE MATCHES "address")
  set(ACCEL_TEST_ENVIRONMENT ";ASAN_OPTIONS=allocator_may_return_null=1;LSAN_OPTIONS=print_suppressions=0:suppressions=${CMAKE_SOURCE_DIR}/configs/leaks_of_libraries.txt")
endif()

# Tests compile without optimization; the libraries under test are optimized.
set(ACCEL_TEST_OPTIONS -O0)

find_program(ACCEL_CCACHE ccache)
if(ACCEL_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_DEPEND=1 CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${ACCEL_CCACHE})
endif()
find_program(ACCEL_MOLD mold)
if(ACCEL_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

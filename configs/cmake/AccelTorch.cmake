# Defines Torch::headers, Torch::cpu and, if ACCEL_CUDA is set, Torch::cuda: LibTorch 2.11 or 2.15. Stores its version in
# ACCEL_TORCH_VERSION, and the folder of its include/ and lib/ in ACCEL_TORCH_PREFIX. The user may set ACCEL_TORCH_ROOT to an unpacked wheel, which contains
# torch/include, or to LibTorch's own archive, which contains include; or Torch_DIR as for find_package(Torch), whose result counts
# too. The default is ACCEL_TORCH_ROOT_OF_PACKAGE in an installed package, and the folder of ./dev setup in the build.

# The first of the candidates that is not empty, else a folder of ./dev setup.
function(accel_first_root result folder_of_setup)
  set(cache "$ENV{ACCEL_CACHE_DIR}")
  if(NOT cache AND DEFINED ENV{XDG_CACHE_HOME})
    set(cache "$ENV{XDG_CACHE_HOME}/accel")
  elseif(NOT cache)
    set(cache "$ENV{HOME}/.cache/accel")
  endif()
  set(roots ${ARGN} "${cache}/${folder_of_setup}")
  list(GET roots 0 root)
  set(${result} "${root}" PARENT_SCOPE)
endfunction()

function(accel_default_torch_root result)
  set(lane cpu)
  if(ACCEL_CUDA)
    set(lane cuda)
  endif()
  set(of_package_torch "${TORCH_INSTALL_PREFIX}")  # of find_package(Torch)
  if(Torch_DIR AND NOT of_package_torch)
    get_filename_component(of_package_torch ${Torch_DIR}/../../.. ABSOLUTE)
  endif()
  accel_first_root(root libtorch-${lane} $ENV{ACCEL_TORCH_ROOT} ${of_package_torch} ${ACCEL_TORCH_ROOT_OF_PACKAGE})
  set(${result} "${root}" PARENT_SCOPE)
endfunction()

function(accel_torch_prefix root result)
  foreach(prefix IN ITEMS ${root}/torch ${root})
    if(EXISTS ${prefix}/lib/libtorch_cpu.so)
      set(${result} ${prefix} PARENT_SCOPE)
      return()
    endif()
  endforeach()
  set(${result} "" PARENT_SCOPE)
endfunction()

# Releases before 2.10 have another version header.
function(accel_torch_version prefix result)
  set(header ${prefix}/include/torch/headeronly/version.h)
  if(NOT EXISTS ${header})
    set(header ${prefix}/include/torch/csrc/api/include/torch/version.h)
  endif()
  file(STRINGS ${header} version REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
  string(REGEX MATCHALL "[0-9]+" version "${version}")
  list(JOIN version "." version)
  set(${result} "${version}" PARENT_SCOPE)
endfunction()

function(accel_add_torch prefix)
  set(torch_lib ${prefix}/lib)
  file(GLOB nvidia_libs LIST_DIRECTORIES true ${prefix}/../nvidia/*/lib)
  add_library(Torch::headers INTERFACE IMPORTED GLOBAL)
  target_include_directories(Torch::headers INTERFACE ${prefix}/include ${prefix}/include/torch/csrc/api/include)
  target_compile_definitions(Torch::headers INTERFACE FMT_SHARED)  # its functions are in libaccel, which may be a shared library
  add_library(Torch::cpu INTERFACE IMPORTED GLOBAL)
  target_compile_definitions(Torch::cpu INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
  target_link_libraries(Torch::cpu INTERFACE Torch::headers -Wl,--no-as-needed ${torch_lib}/libtorch_cpu.so ${torch_lib}/libc10.so -Wl,--as-needed)
  foreach(folder IN LISTS nvidia_libs)
    target_link_options(Torch::cpu INTERFACE -Wl,-rpath-link,${folder})  # LibTorch finds them relative to itself
  endforeach()
  if(ACCEL_CUDA)
    add_library(Torch::cuda INTERFACE IMPORTED GLOBAL)
    # Not libtorch.so: it has no code of LibTorch, but a part of std::filesystem that would take the place of libstdc++'s,
    # and whose remove_all calls a null pointer.
    target_link_libraries(Torch::cuda INTERFACE Torch::cpu -Wl,--no-as-needed ${torch_lib}/libtorch_cuda.so
      ${torch_lib}/libc10_cuda.so -Wl,--as-needed)
    file(GLOB nvidia_includes LIST_DIRECTORIES true ${prefix}/../nvidia/*/include)
    target_include_directories(Torch::cuda INTERFACE ${nvidia_includes})
    target_compile_definitions(Torch::cuda INTERFACE USE_C10D_NCCL)
  endif()
endfunction()

accel_default_torch_root(accel_torch_root)
set(ACCEL_TORCH_ROOT "${accel_torch_root}" CACHE PATH "Folder of LibTorch 2.11: an unpacked wheel or archive")
get_filename_component(ACCEL_TORCH_ROOT "${ACCEL_TORCH_ROOT}" REALPATH)
accel_torch_prefix(${ACCEL_TORCH_ROOT} ACCEL_TORCH_PREFIX)
if(NOT ACCEL_TORCH_PREFIX)
  list(APPEND accel_problems "LibTorch 2.11 was not found in ${ACCEL_TORCH_ROOT}: run ./dev setup, or set ACCEL_TORCH_ROOT to a folder that contains lib/libtorch_cpu.so or torch/lib/libtorch_cpu.so")
else()
  accel_torch_version(${ACCEL_TORCH_PREFIX} ACCEL_TORCH_VERSION)
  if(NOT TARGET Torch::cpu)
    accel_add_torch(${ACCEL_TORCH_PREFIX})
  endif()
endif()

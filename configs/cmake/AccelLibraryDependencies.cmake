# Finds the libraries that a program needs to link accel, as imported targets. Both the build and the installed package
# include this file. Every missing one adds a text to accel_problems, so that one message can report them all.

macro(accel_require package debian)
  find_package(${package} ${ARGN} QUIET)
  if(NOT ${package}_FOUND)
    list(APPEND accel_problems "${package} was not found: on Debian 12, apt-get install ${debian}")
  endif()
endmacro()

set(accel_problems)
accel_require(Threads build-essential)
accel_require(fmt libfmt-dev)
if(ACCEL_ENGINE_ONLY)
  return()
endif()
accel_require(TBB libtbb-dev)
accel_require(yaml-cpp libyaml-cpp-dev)
accel_require(OpenSSL libssl-dev)
accel_require(ZLIB zlib1g-dev)
accel_require(PNG libpng-dev)
accel_require(JPEG libjpeg62-turbo-dev)
include(${CMAKE_CURRENT_LIST_DIR}/AccelTorch.cmake)

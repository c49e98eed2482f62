# Finds the libraries that a program needs to link accel, as imported targets. Both the build and the installed package
# include this file. Every missing one adds a text to accel_problems, so that one message can report them all.

macro(accel_require package debian)
  find_package(${package} ${ARGN} QUIET)
  if(NOT ${package}_FOUND)
    list(APPEND accel_problems "${package} was not found: on Debian 12, apt-get install ${debian}")
  endif()
endmacro()

# For a library without a CMake package. Adds the target NAME::NAME.
macro(accel_require_library name library header debian)
  string(TOUPPER ${name} upper)
  find_library(ACCEL_${upper} ${library})
  find_path(ACCEL_${upper}_INCLUDE ${header})
  if(NOT ACCEL_${upper} OR NOT ACCEL_${upper}_INCLUDE)
    list(APPEND accel_problems "${name} was not found: on Debian 12, apt-get install ${debian}")
  elseif(NOT TARGET ${name}::${name})
    add_library(${name}::${name} UNKNOWN IMPORTED GLOBAL)
    set_target_properties(${name}::${name} PROPERTIES IMPORTED_LOCATION ${ACCEL_${upper}} INTERFACE_INCLUDE_DIRECTORIES ${ACCEL_${upper}_INCLUDE})
  endif()
endmacro()

set(accel_problems)
accel_require(Threads build-essential)
accel_require(yaml-cpp libyaml-cpp-dev)
# SHA-256, by which runs are compared with Python's. Debian's dpkg needs libmd, so an installed program gets no dependency from it.
accel_require_library(md md sha2.h libmd-dev)
include(${CMAKE_CURRENT_LIST_DIR}/AccelTorch.cmake)
if(DEFINED ACCEL_TORCH AND NOT ACCEL_TORCH)
  return()
endif()
accel_require(TBB libtbb-dev)
accel_require(ZLIB zlib1g-dev)
accel_require(PNG libpng-dev)
accel_require(JPEG libjpeg62-turbo-dev)
accel_require_library(hwloc hwloc hwloc.h libhwloc-dev)
accel_require_library(pcre2 pcre2-8 pcre2.h libpcre2-dev)
accel_require_library(utf8proc utf8proc utf8proc.h libutf8proc-dev)

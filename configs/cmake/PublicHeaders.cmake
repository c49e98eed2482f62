# The public headers: those that users include as <accel/...>, and all headers that these include. Only they are
# installed and documented. `cmake -P configs/cmake/PublicHeaders.cmake` prints them, one per line.

if(CMAKE_SCRIPT_MODE_FILE)
  cmake_minimum_required(VERSION 3.25)
endif()

# accel_public_headers(ROOT VARIABLE): paths relative to ROOT, sorted.
function(accel_public_headers root variable)
  file(GLOB_RECURSE queue RELATIVE ${root} ${root}/reference/public/*.hpp ${root}/sim/public/*.hpp ${root}/tests/public/*.hpp)
  set(headers ${queue})
  while(queue)
    list(POP_FRONT queue header)
    file(STRINGS ${root}/${header} includes REGEX "^#include \"")
    list(TRANSFORM includes REPLACE "^#include \"(.*)\".*$" "\\1")
    foreach(included IN LISTS includes)
      if(EXISTS ${root}/${included} AND NOT included IN_LIST headers)
        list(APPEND headers ${included})
        list(APPEND queue ${included})
      endif()
    endforeach()
  endwhile()
  list(SORT headers)
  set(${variable} ${headers} PARENT_SCOPE)
endfunction()

if(CMAKE_SCRIPT_MODE_FILE)
  get_filename_component(root ${CMAKE_CURRENT_LIST_DIR}/../.. ABSOLUTE)
  accel_public_headers(${root} headers)
  list(JOIN headers "\n" text)
  execute_process(COMMAND ${CMAKE_COMMAND} -E echo ${text})
endif()

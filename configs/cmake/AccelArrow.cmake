# Defines Arrow::parquet: Apache Arrow's libarrow and libparquet, with their headers. Stores the version in ACCEL_ARROW_VERSION.
# The user may set ACCEL_ARROW_ROOT to a folder that contains include/ and the libraries, directly or in lib/: an installation
# of Arrow, the folder of Python's pyarrow, or a folder that contains pyarrow/. The default is ACCEL_ARROW_ROOT_OF_PACKAGE in an
# installed package, and the folder of ./dev setup in the build. Include AccelTorch.cmake before.

# A wheel contains the libraries by their complete names only, such as libparquet.so.2100.
function(accel_add_arrow root)
  foreach(prefix IN ITEMS ${root}/pyarrow ${root})
    foreach(library IN ITEMS arrow parquet)
      file(GLOB found ${prefix}/lib${library}.so* ${prefix}/lib*/lib${library}.so* ${prefix}/lib/*/lib${library}.so*)
      set(${library} "")
      if(found)
        list(GET found 0 ${library})
      endif()
    endforeach()
    if(arrow AND parquet AND EXISTS ${prefix}/include/parquet/arrow/reader.h)
      file(STRINGS ${prefix}/include/arrow/util/config.h version REGEX "define ARROW_VERSION_STRING ")
      string(REGEX MATCH "[0-9.]+" version "${version}")
      set(ACCEL_ARROW_VERSION ${version} PARENT_SCOPE)
      if(NOT TARGET Arrow::parquet)
        add_library(Arrow::parquet INTERFACE IMPORTED GLOBAL)
        target_include_directories(Arrow::parquet INTERFACE ${prefix}/include)
        target_link_libraries(Arrow::parquet INTERFACE ${parquet} ${arrow})
      endif()
      return()
    endif()
  endforeach()
endfunction()

accel_first_root(accel_arrow_root arrow $ENV{ACCEL_ARROW_ROOT} ${ACCEL_ARROW_ROOT_OF_PACKAGE})
set(ACCEL_ARROW_ROOT "${accel_arrow_root}" CACHE PATH "Folder of Apache Arrow: an installation, or Python's pyarrow")
get_filename_component(ACCEL_ARROW_ROOT "${ACCEL_ARROW_ROOT}" REALPATH)
accel_add_arrow(${ACCEL_ARROW_ROOT})

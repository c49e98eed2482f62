# What users link: accel::accel; accel::parquet, which needs Apache Arrow; and accel::testing with the helpers for tests. Each is
# one library, which contains the objects of the modules; the modules themselves are for this build alone.

# accel_with_dependencies(VARIABLE MODULES ...): sets VARIABLE to the modules and to all modules that they link.
function(accel_with_dependencies variable)
  set(found "")
  set(waiting ${ARGN})
  while(waiting)
    list(POP_FRONT waiting module)
    if(module IN_LIST found)
      continue()
    endif()
    list(APPEND found ${module})
    get_target_property(dependencies accel_${module} LINK_LIBRARIES)
    foreach(dependency IN LISTS dependencies)
      if(dependency MATCHES "^accel::(.+)$")
        list(APPEND waiting ${CMAKE_MATCH_1})
      endif()
    endforeach()
  endwhile()
  set(${variable} ${found} PARENT_SCOPE)
endfunction()

accel_with_dependencies(accel_modules runtime)
set(accel_testing_modules fake_device test_basics test_support)

# accel_bundle(NAME TYPE FILE MODULES ... DEPS ... [LIBRARIES ...]): DEPS have headers that public headers include.
function(accel_bundle name type file)
  cmake_parse_arguments(ARG "" "" "MODULES;DEPS;LIBRARIES" ${ARGN})
  list(TRANSFORM ARG_MODULES REPLACE "(.+)" "$<TARGET_OBJECTS:accel_\\1>" OUTPUT_VARIABLE objects)
  add_library(accel_bundle_${name} ${type} ${objects})
  add_library(accel::${name} ALIAS accel_bundle_${name})
  set_target_properties(accel_bundle_${name} PROPERTIES EXPORT_NAME ${name} OUTPUT_NAME ${file} LINKER_LANGUAGE CXX
    VERSION ${accel_VERSION} SOVERSION ${accel_VERSION_MAJOR}.${accel_VERSION_MINOR})
  accel_root_includes(accel_bundle_${name} PUBLIC)
  target_link_libraries(accel_bundle_${name} PUBLIC ${ARG_DEPS} PRIVATE ${ARG_LIBRARIES})
endfunction()

set(accel_torch Torch::cpu)
if(ACCEL_CUDA)
  list(APPEND accel_torch Torch::cuda)
endif()
set(accel_type STATIC)
if(ACCEL_SHARED)
  set(accel_type SHARED)
endif()
accel_bundle(accel ${accel_type} accel MODULES ${accel_modules} DEPS ${accel_torch} Threads::Threads
  LIBRARIES TBB::tbb yaml-cpp md::md ZLIB::ZLIB ${accel_optional_libraries} ${CMAKE_DL_LIBS})
target_include_directories(accel_bundle_accel INTERFACE $<BUILD_INTERFACE:${accel_SOURCE_DIR}/sim/public>)  # <accel/testing.hpp>
# Exports the symbols that give each rank its own generator and autocast cache. A shared library has them already.
if(NOT ACCEL_SHARED)
  target_link_options(accel_bundle_accel INTERFACE -rdynamic)
endif()
if(ACCEL_ARROW)
  accel_bundle(parquet STATIC accel_parquet MODULES parquet_sources DEPS accel::accel LIBRARIES Arrow::parquet)
  target_compile_definitions(accel_bundle_parquet INTERFACE ACCEL_PARQUET)
endif()
if(ACCEL_BUILD_TESTS)
  accel_bundle(testing STATIC accel_testing MODULES ${accel_testing_modules} DEPS accel::accel GTest::gtest rapidcheck)
endif()

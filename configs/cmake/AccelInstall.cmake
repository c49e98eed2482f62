# Rules of cmake --install: the libraries, their headers, the programs with their shell completion, and the package for
# find_package(accel).
install(TARGETS accel_bundle_accel EXPORT accelTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(ACCEL_ARROW)
  install(TARGETS accel_bundle_parquet EXPORT accelParquetTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT accelParquetTargets NAMESPACE accel:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/accel)
endif()
# The component `testing` needs GoogleTest and RapidCheck, which the package does not require otherwise.
if(ACCEL_BUILD_TESTS)
  install(TARGETS accel_bundle_testing EXPORT accelTestingTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT accelTestingTargets NAMESPACE accel:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/accel)
endif()
if(ACCEL_INSTALL_TORCH)
  install(DIRECTORY ${ACCEL_TORCH_PREFIX}/include ${ACCEL_TORCH_PREFIX}/lib DESTINATION ${CMAKE_INSTALL_LIBDIR}/accel/torch
    PATTERN "*.a" EXCLUDE PATTERN "libtorch_python*" EXCLUDE)
  if(EXISTS ${ACCEL_TORCH_PREFIX}/../nvidia)
    install(DIRECTORY ${ACCEL_TORCH_PREFIX}/../nvidia DESTINATION ${CMAKE_INSTALL_LIBDIR}/accel PATTERN "*.a" EXCLUDE)
  endif()
endif()

if(ACCEL_BUILD_PROGRAMS)
  install(TARGETS sim_run sim_calibrate accel RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(TARGETS accel_watch_writes LIBRARY DESTINATION lib)
  # Shells search these folders for completion. zsh requires that the file has the name of the function.
  set(completion ${accel_BINARY_DIR}/completion)
  file(MAKE_DIRECTORY ${completion})
  foreach(shell IN ITEMS bash zsh)
    install(CODE "execute_process(COMMAND \"$<TARGET_FILE:accel>\" --completion ${shell} OUTPUT_FILE \"${completion}/${shell}\" COMMAND_ERROR_IS_FATAL ANY)")
  endforeach()
  install(FILES ${completion}/bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME accel)
  install(FILES ${completion}/zsh DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions RENAME _accel)
endif()

# <accel/accel.hpp> and "reference/..." are included as in the source tree; only the folder accel/ is added to include/.
include(PublicHeaders)
accel_public_headers(${accel_SOURCE_DIR} headers)
foreach(header IN LISTS headers)
  get_filename_component(folder ${header} DIRECTORY)
  string(PREPEND folder accel/)
  string(REGEX REPLACE "^accel/(reference|sim|tests)/public/accel" "accel" folder ${folder})
  install(FILES ${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/${folder})
endforeach()

include(CMakePackageConfigHelpers)
configure_file(configs/cmake/accelConfig.cmake.in ${accel_BINARY_DIR}/accelConfig.cmake @ONLY)
write_basic_package_version_file(${accel_BINARY_DIR}/accelConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${accel_BINARY_DIR}/accelConfig.cmake ${accel_BINARY_DIR}/accelConfigVersion.cmake
  configs/cmake/AccelArrow.cmake configs/cmake/AccelLibraryDependencies.cmake configs/cmake/AccelTorch.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/accel)
install(EXPORT accelTargets NAMESPACE accel:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/accel)

# ./dev package
if(PROJECT_IS_TOP_LEVEL)
  set(CPACK_GENERATOR DEB)
  set(CPACK_PACKAGE_NAME accel)
  set(CPACK_PACKAGE_CONTACT "The authors of accel <accel@localhost>")
  set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Hugging Face Accelerate in C++, with a simulator of distributed training")
  set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
  set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
  set(CPACK_DEBIAN_COMPRESSION_TYPE zstd)
  # Of the programs; the rest is what a program needs to be compiled and linked.
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${ACCEL_TORCH_PREFIX}/lib)
  set(CPACK_DEBIAN_PACKAGE_SUGGESTS "cmake, g++ | clang, libtbb-dev, libyaml-cpp-dev, libmd-dev, zlib1g-dev, libpng-dev, libjpeg-dev, libhwloc-dev, libpcre2-dev, libutf8proc-dev")
  include(CPack)
endif()

# To publish the port, take the sources with vcpkg_from_github.
get_filename_component(SOURCE_PATH "${CMAKE_CURRENT_LIST_DIR}/../../../../.." ABSOLUTE)

vcpkg_check_linkage(ONLY_STATIC_LIBRARY)
vcpkg_check_features(OUT_FEATURE_OPTIONS feature_options FEATURES
  hwloc ACCEL_HWLOC
  jpeg ACCEL_JPEG
  pcre2 ACCEL_PCRE2
  png ACCEL_PNG
  tools ACCEL_BUILD_PROGRAMS
  utf8proc ACCEL_UTF8PROC)
vcpkg_cmake_configure(SOURCE_PATH "${SOURCE_PATH}" OPTIONS ${feature_options}
  -DACCEL_TORCH_ROOT=${CURRENT_INSTALLED_DIR}
  -DACCEL_INSTALL_TORCH=OFF
  -DACCEL_ARROW=OFF
  -DACCEL_BUILD_TESTS=OFF
  -DACCEL_BUILD_BENCH=OFF)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH lib/cmake/accel)
if("tools" IN_LIST FEATURES)
  vcpkg_copy_tools(TOOL_NAMES accel sim-calibrate sim-run AUTO_CLEAN)
endif()
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include" "${CURRENT_PACKAGES_DIR}/debug/share")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")

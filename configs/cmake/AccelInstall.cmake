# Rules of cmake --install: the libraries, their headers, the programs with their shell completion, and the package for
# find_package(accel).
install(TARGETS accel_errors accel_core accel_config accel_comm accel_state accel_mesh accel_data accel_optim accel_precision accel_parallel accel_sources accel_terminal accel_tracking
  accel_profiler accel_modules accel_models accel_sharded accel_checkpoint accel_offload accel_prepared accel_training_state accel_accelerator accel_shared_memory accel_gloo accel_nccl accel_launch accel_sim_engine accel_sim_collectives accel_sim_collective_tensors accel_sim_faults accel_sim_network accel_sim_report
  accel_sim accel_accel
  EXPORT accelTargets ARCHIVE DESTINATION lib)
# The component `testing` needs GoogleTest and RapidCheck, which the package does not require otherwise.
install(TARGETS accel_fake_device accel_test_basics accel_test_support accel_testing EXPORT accelTestingTargets ARCHIVE DESTINATION lib)
install(TARGETS sim_run sim_calibrate accel RUNTIME DESTINATION bin)

# Shells search these folders for completion. zsh requires that the file has the name of the function.
set(completion ${CMAKE_BINARY_DIR}/completion)
file(MAKE_DIRECTORY ${completion})
foreach(shell IN ITEMS bash zsh)
  install(CODE "execute_process(COMMAND \"$<TARGET_FILE:accel>\" --completion ${shell} OUTPUT_FILE \"${completion}/${shell}\" COMMAND_ERROR_IS_FATAL ANY)")
endforeach()
install(FILES ${completion}/bash DESTINATION share/bash-completion/completions RENAME accel)
install(FILES ${completion}/zsh DESTINATION share/zsh/site-functions RENAME _accel)

# <accel/accel.hpp> and "reference/..." are included as in the source tree; only the folder accel/ is added to include/.
include(PublicHeaders)
accel_public_headers(${CMAKE_SOURCE_DIR} headers)
foreach(header IN LISTS headers)
  get_filename_component(folder ${header} DIRECTORY)
  string(PREPEND folder accel/)
  string(REGEX REPLACE "^accel/(reference|sim|tests)/public/accel" "accel" folder ${folder})
  install(FILES ${header} DESTINATION include/${folder})
endforeach()

include(CMakePackageConfigHelpers)
configure_file(configs/cmake/accelConfig.cmake.in ${CMAKE_BINARY_DIR}/accelConfig.cmake @ONLY)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/accelConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/accelConfig.cmake ${CMAKE_BINARY_DIR}/accelConfigVersion.cmake
  configs/cmake/AccelLibraryDependencies.cmake configs/cmake/AccelTorch.cmake DESTINATION lib/cmake/accel)
install(EXPORT accelTargets NAMESPACE accel:: DESTINATION lib/cmake/accel)
install(EXPORT accelTestingTargets NAMESPACE accel:: DESTINATION lib/cmake/accel)

# A toolchain whose programs run on every Linux with glibc 2.28 or later: Zig's, which knows the symbols of each glibc and compiles
# for other machines too. configs/dev/wheel.sh makes the folder of tools and the libraries, and sets the variables.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR $ENV{ACCEL_MACHINE})
set(CMAKE_C_COMPILER $ENV{ACCEL_PORTABLE_TOOLS}/cc)
set(CMAKE_CXX_COMPILER $ENV{ACCEL_PORTABLE_TOOLS}/c++)
set(CMAKE_AR $ENV{ACCEL_PORTABLE_TOOLS}/ar)
set(CMAKE_RANLIB $ENV{ACCEL_PORTABLE_TOOLS}/ranlib)
set(CMAKE_EXE_LINKER_FLAGS_INIT -s)
set(CMAKE_MODULE_LINKER_FLAGS_INIT -s)
set(ACCEL_MOLD "" CACHE FILEPATH "Zig links by itself")
# No header or library of this machine.
set(CMAKE_FIND_ROOT_PATH $ENV{ACCEL_PORTABLE_LIBRARIES})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)

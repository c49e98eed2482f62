# cmake -DSOURCE=... -DVERSION=... -DOUTPUT=... -P Version.cmake: writes the version with the commit of the source tree, if it is one
# of git's. The file changes only if its text does, so that a build without a new commit compiles nothing.
set(text ${VERSION})
execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=8 --exclude=* OUTPUT_VARIABLE commit
  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(NOT failed AND EXISTS ${SOURCE}/.git)
  string(APPEND text " (${commit})")
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "namespace accel::programs {\nextern const char* const kVersion;\nconst char* const kVersion = \"${text}\";\n}  // namespace accel::programs\n")

# Writes stubs that return success for the symbols of the CUDA libraries that LibTorch needs: cmake -DTORCH_LIB=DIR
# -DOUTPUT=FILE -P stubs.cmake. They are weak, so that the functions of the other sources replace them.
file(GLOB libraries ${TORCH_LIB}/libtorch_cuda*.so ${TORCH_LIB}/libc10_cuda.so ${TORCH_LIB}/libtorch_cpu.so)
execute_process(COMMAND nm -D --undefined-only ${libraries} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "[A-Za-z_0-9]+@libcudart|(cublas|cublasLt|cudnn|cusparse|cusparseLt|cusolver|cufft|curand|nvrtc|nccl)[A-Z][A-Za-z_0-9]*" names "${symbols}")
list(TRANSFORM names REPLACE "@libcudart" "")
list(REMOVE_DUPLICATES names)
list(SORT names)
set(content "")
foreach(name IN LISTS names)
  string(APPEND content "extern \"C\" __attribute__((weak, visibility(\"default\"))) int ${name}() { return 0; }\n")
endforeach()
file(WRITE ${OUTPUT} "${content}")

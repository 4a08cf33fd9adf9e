# CUDA for the whole project; included only when TESSERA_CUDA is ON, so that a CPU build never looks for a toolkit.
#
# sm_90a is the one architecture built: wgmma and setmaxnreg exist only under the "a" suffix. The runtime is linked
# statically and driver entry points are looked up at run time, so a CUDA build also starts where there is no driver.
find_program(CMAKE_CUDA_COMPILER nvcc HINTS ENV CUDA_HOME PATHS /usr/local/cuda/bin DOC "The CUDA compiler, 13.0 or later")
if(NOT CMAKE_CUDA_COMPILER)
  message(FATAL_ERROR "TESSERA_CUDA: got ON, but nvcc is neither on PATH nor in /usr/local/cuda/bin; "
                      "install CUDA 13.0 or later, or configure with -DTESSERA_CUDA=OFF")
endif()
set(CMAKE_CUDA_ARCHITECTURES OFF)  # -gencode below says it exactly
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
enable_language(CUDA)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 13.0)
  message(FATAL_ERROR "TESSERA_CUDA: got nvcc ${CMAKE_CUDA_COMPILER_VERSION}; allowed 13.0 or later; "
                      "install a newer toolkit or configure with -DTESSERA_CUDA=OFF")
endif()
find_package(CUDAToolkit REQUIRED)

# CMake before 3.26 knows no C++20 flag for nvcc.
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)

# -fmad=false: every fma of the contract is spelled __fmaf_rn; the compiler may add none (contract.md, hygiene).
# --expt-relaxed-constexpr: contract/ is constexpr functions that know nothing of CUDA.
add_compile_options(
  "$<$<COMPILE_LANGUAGE:CUDA>:--generate-code=arch=compute_90a,code=sm_90a>"
  "$<$<COMPILE_LANGUAGE:CUDA>:-fmad=false>"
  "$<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>"
  "$<$<COMPILE_LANGUAGE:CUDA>:-lineinfo>"
  "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Werror all-warnings>"
  "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Xcompiler -Wall,-Wextra,-ffp-contract=off,-fno-fast-math>")

# For kernels, that is for tessera_library: a register spill or a stack frame is a build error. Programs such as the
# probe may index local arrays.
set(TESSERA_KERNEL_OPTIONS
  "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Xptxas --warn-on-spills,--warn-on-local-memory-usage,--warning-as-error>")

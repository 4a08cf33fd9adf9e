# Compiler options that hold for every target of the project.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

# -ffp-contract=off: every fma of the numeric contract is spelled out; the compiler may add none (contract.md, hygiene).
set(TESSERA_WARNINGS -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Werror)
add_compile_options(
  "$<$<COMPILE_LANGUAGE:C,CXX>:-ffp-contract=off>"
  "$<$<COMPILE_LANGUAGE:C,CXX>:-fno-fast-math>")

# ccache, where it is installed, makes a second build from another folder cheap.
find_program(TESSERA_CCACHE ccache)
if(TESSERA_CCACHE AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_C_COMPILER_LAUNCHER ${TESSERA_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${TESSERA_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${TESSERA_CCACHE})
endif()

if(TESSERA_SANITIZE)
  add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=address,undefined;-fno-sanitize-recover=all;-fno-omit-frame-pointer>")
  add_link_options(-fsanitize=address,undefined)
endif()

# Every file gets the coverage hooks that steer a fuzzer; the fuzz targets add -fsanitize=fuzzer, which brings main().
if(TESSERA_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES Clang)
    message(FATAL_ERROR "TESSERA_FUZZ: got the compiler ${CMAKE_CXX_COMPILER_ID}; allowed Clang, which has libFuzzer; "
                        "configure with: cmake --preset fuzz")
  endif()
  add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=fuzzer-no-link>")
endif()

# A library of the project: warnings as errors, includes relative to src/ and include/.
function(tessera_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_compile_options(${name} PRIVATE "$<$<COMPILE_LANGUAGE:C,CXX>:${TESSERA_WARNINGS}>" ${TESSERA_KERNEL_OPTIONS})
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(${name} PUBLIC ${ARG_DEPS})
endfunction()

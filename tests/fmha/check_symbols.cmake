# Objects that are compiled for one instruction set define no symbol that the linker may merge with another object's copy:
# that copy could then run on a machine without the instructions (simd/portable.h).
#   cmake -DNM=nm -DOBJECTS="a.o;b.o" -P check_symbols.cmake
set(checked 0)
foreach(object IN LISTS OBJECTS)
  if(NOT object MATCHES "avx")
    continue()
  endif()
  execute_process(COMMAND ${NM} ${object} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[^\n]* [WVu] [^\n]*" weak "${symbols}")
  list(FILTER weak EXCLUDE REGEX "DW[.]ref|__gxx_personality")
  if(weak)
    message(FATAL_ERROR "${object}: got mergeable symbols ${weak}; allowed none; put them into an unnamed namespace")
  endif()
  math(EXPR checked "${checked} + 1")
endforeach()
if(NOT checked)
  message(FATAL_ERROR "OBJECTS: got none with avx in the name; allowed the objects of a CPU kernel library")
endif()

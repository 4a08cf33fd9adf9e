# tessera_python_test(NAME SCRIPT [ARGS...] [LABELS...]): a Python script as a ctest test.
#
# Runs SCRIPT with the interpreter of .venv (tools/setup test). Exit code 0 passes; 77 means that something the test needs
# is not there (the demo model, a Python package), says so, and is listed by ctest as skipped; anything else fails.
# ARGS may hold generator expressions, e.g. $<TARGET_FILE:tessera_cli>.
function(tessera_python_test name)
  cmake_parse_arguments(ARG "" "SCRIPT" "ARGS;LABELS" ${ARGN})
  set(python ${PROJECT_SOURCE_DIR}/.venv/bin/python)
  if(NOT EXISTS ${python})
    find_package(Python3 3.11 REQUIRED COMPONENTS Interpreter)
    set(python ${Python3_EXECUTABLE})
  endif()
  add_test(NAME ${name} COMMAND ${python} -B ${CMAKE_CURRENT_SOURCE_DIR}/${ARG_SCRIPT} ${ARG_ARGS})
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" SKIP_RETURN_CODE 77 TIMEOUT 600)
endfunction()

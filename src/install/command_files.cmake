# The command prints its own manual page and completion, so it has to run here.
if(NOT TARGET fwdmeta_command)
  return()
endif()
if(CMAKE_CROSSCOMPILING AND NOT CMAKE_CROSSCOMPILING_EMULATOR)
  message(STATUS "fwdmeta: no manual page and no completion, the command cannot be run while cross-compiling")
  return()
endif()
set(fwdmeta_man_page ${CMAKE_CURRENT_BINARY_DIR}/fwdmeta.1)
set(fwdmeta_bash_completion ${CMAKE_CURRENT_BINARY_DIR}/completions/fwdmeta)
file(MAKE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/completions)
add_custom_command(OUTPUT ${fwdmeta_man_page} ${fwdmeta_bash_completion}
  COMMAND fwdmeta_command man > ${fwdmeta_man_page}
  COMMAND fwdmeta_command completion bash > ${fwdmeta_bash_completion}
  COMMENT "Writing the command's manual page and completion" VERBATIM)
add_custom_target(fwdmeta_command_files ALL DEPENDS ${fwdmeta_man_page} ${fwdmeta_bash_completion})

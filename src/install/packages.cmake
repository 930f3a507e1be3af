# `cpack -G DEB` makes Debian packages for /usr, whatever prefix is configured; `cpack -G TGZ` the prefix as an archive.
set(FWDMETA_PACKAGE_CONTACT "The libfwdmeta maintainers <maintainers@fwdmeta.invalid>" CACHE STRING
  "Maintainer that the Debian packages name")

# The rules once more for the places that Debian has for them: its folder of libraries is one an architecture.
set(deb_libdir lib)
if(CMAKE_LIBRARY_ARCHITECTURE)
  set(deb_libdir lib/${CMAKE_LIBRARY_ARCHITECTURE})
endif()
fwdmeta_install(fwdmeta_deb ${deb_libdir} EXCLUDE_FROM_ALL)

# A package of a shared library is named after its soname, so that two of them can stand side by side. The command and
# the plug-in therefore have packages of their own.
get_target_property(soversion fwdmeta SOVERSION)
set(deb_runtime libfwdmeta${soversion})
set(deb_dev libfwdmeta-dev)
set(deb_command fwdmeta)
set(deb_parts runtime dev)
if(TARGET fwdmeta_command)
  list(APPEND deb_parts command)
endif()
if(TARGET fwdmeta_nccl)
  get_target_property(plugin_suffix fwdmeta_nccl SUFFIX)
  string(REGEX REPLACE "^\\.so\\." "libfwdmeta-nccl" deb_nccl ${plugin_suffix})
  list(APPEND deb_parts nccl)
endif()

file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/deb/shlibs "libfwdmeta ${soversion} ${deb_runtime} (>= ${PROJECT_VERSION})\n")
file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/deb/triggers "activate-noawait ldconfig\n")

set(CPACK_PACKAGE_NAME fwdmeta)
set(CPACK_PACKAGE_VENDOR "")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "") # each package has its own
set(CPACK_PACKAGE_CONTACT "${FWDMETA_PACKAGE_CONTACT}")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_STRIP_FILES ON)
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
  OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
find_program(FWDMETA_DPKG_SHLIBDEPS dpkg-shlibdeps)
mark_as_advanced(FWDMETA_DPKG_SHLIBDEPS)
set(CPACK_GENERATOR TGZ)
if(FWDMETA_DPKG_SHLIBDEPS)
  set(CPACK_GENERATOR DEB)
endif()

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(what "Forward metadata of an LLM serving step")
set(about
"Computes, for one step of an LLM serving engine, which thread block of an
attention kernel works on which tile, the cu_seqlens arrays, positions and
cache slots of tokens, and the rows that need logits.")
foreach(part IN LISTS deb_parts)
  string(TOUPPER fwdmeta_deb_${part} PART)
  set(CPACK_DEBIAN_${PART}_PACKAGE_NAME ${deb_${part}})
  list(APPEND deb_components fwdmeta_deb_${part})
  list(APPEND plain_components fwdmeta_${part})
endforeach()
set(CPACK_DEBIAN_FWDMETA_DEB_RUNTIME_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_FWDMETA_DEB_RUNTIME_PACKAGE_CONTROL_EXTRA
  ${CMAKE_CURRENT_BINARY_DIR}/deb/shlibs ${CMAKE_CURRENT_BINARY_DIR}/deb/triggers)
set(CPACK_DEBIAN_FWDMETA_DEB_RUNTIME_DESCRIPTION "${what} (library)\n${about}")
set(CPACK_DEBIAN_FWDMETA_DEB_DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_FWDMETA_DEB_DEV_PACKAGE_DEPENDS
  "${deb_runtime} (= ${PROJECT_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE})")
set(CPACK_DEBIAN_FWDMETA_DEB_DEV_DESCRIPTION
  "${what} (headers)\n${about}\n\nThis package has the headers, and what CMake and pkg-config need.")
set(CPACK_DEBIAN_FWDMETA_DEB_COMMAND_PACKAGE_SECTION utils)
set(CPACK_DEBIAN_FWDMETA_DEB_COMMAND_DESCRIPTION
  "${what} (command)\n${about}\n\nThis package has the command fwdmeta.")
set(CPACK_DEBIAN_FWDMETA_DEB_NCCL_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_FWDMETA_DEB_NCCL_PACKAGE_DEPENDS libnccl2)
set(CPACK_DEBIAN_FWDMETA_DEB_NCCL_PACKAGE_ENHANCES ${deb_runtime})
set(CPACK_DEBIAN_FWDMETA_DEB_NCCL_DESCRIPTION
  "${what} (NCCL plug-in)\n${about}\n\nThis package has the plug-in by which ranks agree through NCCL.")

set(CPACK_COMPONENTS_ALL ${plain_components})
set(CPACK_FWDMETA_DEB_COMPONENTS ${deb_components})
set(CPACK_FWDMETA_LIBRARY_DIR ${CMAKE_CURRENT_BINARY_DIR}/..)
set(CPACK_FWDMETA_SHLIBDEPS "${FWDMETA_DPKG_SHLIBDEPS}")
set(CPACK_FWDMETA_SHLIBS ${CMAKE_CURRENT_BINARY_DIR}/deb/shlibs)
set(CPACK_FWDMETA_COPYRIGHT ${CMAKE_CURRENT_LIST_DIR}/copyright)
set(CPACK_FWDMETA_CHANGELOG ${PROJECT_SOURCE_DIR}/CHANGELOG.md)
set(CPACK_PROJECT_CONFIG_FILE ${CMAKE_CURRENT_LIST_DIR}/cpack_generator.cmake)
set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_CURRENT_LIST_DIR}/cpack_deb.cmake)
include(CPack)

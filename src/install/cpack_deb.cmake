# Read by cpack when the files of all components are in place: what a Debian package wants of them.
if(NOT CPACK_GENERATOR STREQUAL "DEB")
  return()
endif()

function(compress file)
  execute_process(COMMAND gzip -9nf ${file} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

# The dependencies of all programs and libraries below `root`. CPack would ask dpkg-shlibdeps too, but it then adds
# scripts that call ldconfig, and a package has only the trigger for that.
function(shared_library_depends root out)
  set(objects)
  file(GLOB_RECURSE files LIST_DIRECTORIES false ${root}/usr/bin/* ${root}/usr/lib/*.so*)
  foreach(file IN LISTS files)
    if(NOT IS_SYMLINK ${file})
      list(APPEND objects ${file})
    endif()
  endforeach()
  set(${out} "" PARENT_SCOPE)
  if(objects)
    set(scratch ${CPACK_TEMPORARY_DIRECTORY}/shlibdeps)
    file(WRITE ${scratch}/debian/control "") # dpkg-shlibdeps does not start without it
    execute_process(COMMAND ${CPACK_FWDMETA_SHLIBDEPS} -L${CPACK_FWDMETA_SHLIBS} -l${CPACK_FWDMETA_LIBRARY_DIR}
                            --ignore-missing-info -O ${objects}
                    WORKING_DIRECTORY ${scratch} OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
    if(NOT output MATCHES "shlibs:Depends=([^\n]+)")
      message(FATAL_ERROR "dpkg-shlibdeps names no dependency of ${objects}: ${output}")
    endif()
    set(${out} "${CMAKE_MATCH_1}" PARENT_SCOPE)
  endif()
endfunction()

string(TIMESTAMP now "%a, %d %b %Y %H:%M:%S +0000" UTC)
set(debian_changelog "fwdmeta (${CPACK_PACKAGE_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE}) unstable; urgency=medium

  * Version ${CPACK_PACKAGE_VERSION}; what is new in it is in the file changelog.

 -- ${CPACK_PACKAGE_CONTACT}  ${now}
")

foreach(component IN LISTS CPACK_FWDMETA_DEB_COMPONENTS)
  string(TOUPPER ${component} COMPONENT)
  set(root ${CPACK_TEMPORARY_DIRECTORY}/${component})
  set(doc ${root}/usr/share/doc/${CPACK_DEBIAN_${COMPONENT}_PACKAGE_NAME})
  file(MAKE_DIRECTORY ${doc})
  file(COPY_FILE ${CPACK_FWDMETA_COPYRIGHT} ${doc}/copyright)
  file(COPY_FILE ${CPACK_FWDMETA_CHANGELOG} ${doc}/changelog)
  file(WRITE ${doc}/changelog.Debian "${debian_changelog}")
  compress(${doc}/changelog)
  compress(${doc}/changelog.Debian)
  file(GLOB manual_pages ${root}/usr/share/man/man1/*.1)
  foreach(page IN LISTS manual_pages)
    compress(${page})
  endforeach()
  if(EXISTS ${root}/usr/bin/fwdmeta)
    file(RPATH_REMOVE FILE ${root}/usr/bin/fwdmeta) # the library is in a folder that the loader searches
  endif()
  shared_library_depends(${root} libraries)
  if(libraries)
    list(JOIN CPACK_DEBIAN_${COMPONENT}_PACKAGE_DEPENDS ", " stated)
    list(APPEND libraries ${stated})
    list(JOIN libraries ", " CPACK_DEBIAN_${COMPONENT}_PACKAGE_DEPENDS)
  endif()
endforeach()

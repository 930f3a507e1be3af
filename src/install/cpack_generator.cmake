# Read by cpack for each generator: which components it packs.
if(CPACK_GENERATOR STREQUAL "DEB")
  set(CPACK_COMPONENTS_ALL ${CPACK_FWDMETA_DEB_COMPONENTS})
  set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
endif()

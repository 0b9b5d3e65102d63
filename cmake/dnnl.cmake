# oneDNN as DNNL::dnnl. Debian's own CMake package of it asks for OpenCL's headers, which only its GPU engine needs and which do not come
# with it.
find_path(PLIMSOLL_DNNL_INCLUDE oneapi/dnnl/dnnl.h)
find_library(PLIMSOLL_DNNL_LIBRARY dnnl)
if(NOT PLIMSOLL_DNNL_INCLUDE OR NOT PLIMSOLL_DNNL_LIBRARY)
  message(FATAL_ERROR "oneDNN was not found (Debian's package is libdnnl-dev); where it is elsewhere, name that in CMAKE_PREFIX_PATH")
endif()
file(STRINGS ${PLIMSOLL_DNNL_INCLUDE}/oneapi/dnnl/dnnl_version.h PLIMSOLL_DNNL_MAJOR REGEX "#define DNNL_VERSION_MAJOR")
string(REGEX MATCH "[0-9]+" PLIMSOLL_DNNL_MAJOR "${PLIMSOLL_DNNL_MAJOR}")
if(NOT PLIMSOLL_DNNL_MAJOR EQUAL 2)
  message(FATAL_ERROR "oneDNN 2 is needed; ${PLIMSOLL_DNNL_INCLUDE} has oneDNN ${PLIMSOLL_DNNL_MAJOR}, whose calls differ")
endif()
add_library(DNNL::dnnl UNKNOWN IMPORTED)
set_target_properties(DNNL::dnnl PROPERTIES
  IMPORTED_LOCATION ${PLIMSOLL_DNNL_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${PLIMSOLL_DNNL_INCLUDE})

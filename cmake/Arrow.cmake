# coupler::arrow: Apache Arrow and Parquet from the folder COUPLER_ARROW_ROOT, which is that of PyPI's
# wheel pyarrow: it has the headers and the libraries, and scripts/setup --arrow fetches it. Without
# it, libcoupler_arrow is not built, and load_dataset refuses Parquet and Arrow files.
set(COUPLER_ARROW_ROOT "$ENV{COUPLER_ARROW_ROOT}" CACHE PATH "The folder pyarrow of its wheel; empty: that of scripts/setup --arrow")
set(_arrow_root ${COUPLER_ARROW_ROOT})
if(NOT _arrow_root)
  file(GLOB _stamps ${PROJECT_SOURCE_DIR}/.deps/arrow-*/complete)
  list(SORT _stamps COMPARE NATURAL ORDER DESCENDING)
  foreach(_stamp IN LISTS _stamps)
    cmake_path(GET _stamp PARENT_PATH _arrow_root)
    string(APPEND _arrow_root /pyarrow)
    break()
  endforeach()
endif()
if(NOT _arrow_root)
  return()
endif()

cmake_path(ABSOLUTE_PATH _arrow_root BASE_DIRECTORY ${PROJECT_SOURCE_DIR} NORMALIZE)

# The wheel has no links without a version.
file(GLOB _arrow ${_arrow_root}/libarrow.so.*)
file(GLOB _parquet ${_arrow_root}/libparquet.so.*)
if(NOT _arrow OR NOT _parquet OR NOT EXISTS ${_arrow_root}/include/arrow/c/bridge.h)
  message(FATAL_ERROR "COUPLER_ARROW_ROOT=${_arrow_root} is not the folder pyarrow of its wheel: it has no "
                      "libarrow.so, libparquet.so or headers. Run scripts/setup --arrow, or unset it.")
endif()
list(GET _arrow 0 _arrow)
list(GET _parquet 0 _parquet)
message(STATUS "Apache Arrow: ${_arrow}")
set(COUPLER_ARROW_FOUND ${_arrow_root})
add_library(coupler_arrow_libraries INTERFACE)
target_include_directories(coupler_arrow_libraries SYSTEM INTERFACE ${_arrow_root}/include)
target_link_libraries(coupler_arrow_libraries INTERFACE ${_parquet} ${_arrow})
add_library(coupler::arrow ALIAS coupler_arrow_libraries)

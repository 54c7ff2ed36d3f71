# coupler::torch for the build: the LibTorch in COUPLER_TORCH_ROOT. A project that already has a
# target named torch keeps it: two LibTorches in one program clash.

# LibTorch's include folder contains the headers of another fmt, without its library. The folder below,
# searched first, contains those of the fmt we link.
get_target_property(_fmt_include fmt::fmt INTERFACE_INCLUDE_DIRECTORIES)
set(_fmt_first ${PROJECT_BINARY_DIR}/fmt-first)
file(MAKE_DIRECTORY ${_fmt_first})
file(CREATE_LINK ${_fmt_include}/fmt ${_fmt_first}/fmt SYMBOLIC)

if(TARGET torch)
  add_library(coupler_torch INTERFACE)
  target_include_directories(coupler_torch SYSTEM INTERFACE ${_fmt_first})
  target_link_libraries(coupler_torch INTERFACE torch)
  add_library(coupler::torch ALIAS coupler_torch)
  set(COUPLER_TORCH_VERSION ${Torch_VERSION})
  string(REGEX MATCH "^[0-9]+[.][0-9]+" COUPLER_TORCH_MINOR "${COUPLER_TORCH_VERSION}")
  return()
endif()

if(NOT COUPLER_TORCH_VERSION)
  message(FATAL_ERROR "No LibTorch 2.11 or newer in COUPLER_TORCH_ROOT=${COUPLER_TORCH_ROOT}.\n"
                      "Run scripts/setup, or pass -DCOUPLER_TORCH_ROOT=<the torch folder of a wheel>.")
endif()
if(COUPLER_TORCH_VERSION VERSION_LESS 2.11)
  message(FATAL_ERROR "LibTorch ${COUPLER_TORCH_VERSION} in ${COUPLER_TORCH_ROOT} is too old: 2.11 or newer")
endif()
string(REGEX MATCH "^[0-9]+[.][0-9]+" COUPLER_TORCH_MINOR ${COUPLER_TORCH_VERSION})
if(NOT COUPLER_TORCH_MINOR MATCHES "^2[.](11|13|15)$")  # tests/reports/platforms.txt
  message(WARNING "LibTorch ${COUPLER_TORCH_VERSION} is untested with this version of Coupler (tested: 2.11, 2.13 and 2.15)")
endif()
message(STATUS "LibTorch ${COUPLER_TORCH_VERSION}: ${COUPLER_TORCH_ROOT}")
coupler_torch_targets(${COUPLER_TORCH_ROOT})
# target_include_directories appends, but this one must come first.
get_target_property(_torch_includes coupler_torch INTERFACE_INCLUDE_DIRECTORIES)
set_target_properties(coupler_torch PROPERTIES
  INTERFACE_INCLUDE_DIRECTORIES "${_fmt_first};${_torch_includes}"
  INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${_fmt_first};${_torch_includes}")

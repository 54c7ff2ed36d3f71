# coupler::torch: the CPU part of LibTorch (libtorch_cpu.so and libc10.so) as an imported target.
#
# find_package(Torch) of the CUDA wheel wants a whole CUDA toolkit; linking only these two libraries
# needs none, and one binary still serves GPUs, since libtorch_cuda.so can be opened at run time. A
# project that already has a target named torch keeps it: two LibTorches in one program clash.

# LibTorch's include folder holds the headers of another fmt, without its library: the folder below,
# searched before it, holds those of the fmt we link.
get_target_property(_fmt_include fmt::fmt INTERFACE_INCLUDE_DIRECTORIES)
set(_fmt_first ${PROJECT_BINARY_DIR}/fmt-first)
file(MAKE_DIRECTORY ${_fmt_first})
file(CREATE_LINK ${_fmt_include}/fmt ${_fmt_first}/fmt SYMBOLIC)

if(TARGET torch)
  add_library(coupler_torch INTERFACE)
  target_include_directories(coupler_torch SYSTEM INTERFACE ${_fmt_first})
  target_link_libraries(coupler_torch INTERFACE torch)
  add_library(coupler::torch ALIAS coupler_torch)
  return()
endif()

set(_torch_version_header ${COUPLER_TORCH_ROOT}/include/torch/headeronly/version.h)
if(NOT EXISTS ${_torch_version_header})
  message(FATAL_ERROR "No LibTorch 2.11 or newer in COUPLER_TORCH_ROOT=${COUPLER_TORCH_ROOT}.\n"
                      "Run scripts/setup, or pass -DCOUPLER_TORCH_ROOT=<the torch folder of a wheel>.")
endif()
foreach(part MAJOR MINOR PATCH)
  file(STRINGS ${_torch_version_header} _line REGEX "#define TORCH_VERSION_${part} ")
  string(REGEX REPLACE ".* ([0-9]+).*" "\\1" _torch_${part} "${_line}")
endforeach()
set(COUPLER_TORCH_VERSION ${_torch_MAJOR}.${_torch_MINOR}.${_torch_PATCH})
if(COUPLER_TORCH_VERSION VERSION_LESS 2.11)
  message(FATAL_ERROR "LibTorch ${COUPLER_TORCH_VERSION} in ${COUPLER_TORCH_ROOT} is too old: 2.11 or newer")
elseif(COUPLER_TORCH_VERSION VERSION_GREATER_EQUAL 2.12)
  message(WARNING "LibTorch ${COUPLER_TORCH_VERSION} is untested with this version of Coupler (tested: 2.11)")
endif()
message(STATUS "LibTorch ${COUPLER_TORCH_VERSION}: ${COUPLER_TORCH_ROOT}")

add_library(coupler_torch_c10 SHARED IMPORTED GLOBAL)
set_target_properties(coupler_torch_c10 PROPERTIES
  IMPORTED_LOCATION ${COUPLER_TORCH_ROOT}/lib/libc10.so IMPORTED_SONAME libc10.so)
add_library(coupler_torch SHARED IMPORTED GLOBAL)
set_target_properties(coupler_torch PROPERTIES
  IMPORTED_LOCATION ${COUPLER_TORCH_ROOT}/lib/libtorch_cpu.so IMPORTED_SONAME libtorch_cpu.so)
target_include_directories(coupler_torch SYSTEM INTERFACE
  ${_fmt_first} ${COUPLER_TORCH_ROOT}/include ${COUPLER_TORCH_ROOT}/include/torch/csrc/api/include)
# NDEBUG always: LibTorch's headers differ without it, and its libraries are release builds.
target_compile_definitions(coupler_torch INTERFACE _GLIBCXX_USE_CXX11_ABI=1 NDEBUG)
target_link_libraries(coupler_torch INTERFACE coupler_torch_c10)
target_link_options(coupler_torch INTERFACE LINKER:-rpath,${COUPLER_TORCH_ROOT}/lib)
add_library(coupler::torch ALIAS coupler_torch)

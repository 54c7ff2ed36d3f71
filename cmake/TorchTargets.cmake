# coupler_torch_targets(root): coupler::torch, the CPU part of the LibTorch in root (libtorch_cpu.so
# and libc10.so) as imported targets; COUPLER_TORCH_VERSION is its version. Installed: Coupler's own
# build and find_package(Coupler) share it.
#
# find_package(Torch) of the CUDA wheel requires a whole CUDA toolkit; linking only these two libraries
# does not, and one binary still supports GPUs, since libtorch_cuda.so can be opened at run time.
function(coupler_torch_version root result)
  set(header ${root}/include/torch/headeronly/version.h)
  set(${result} "" PARENT_SCOPE)
  if(NOT EXISTS ${header})
    return()
  endif()
  foreach(part MAJOR MINOR PATCH)
    file(STRINGS ${header} line REGEX "#define TORCH_VERSION_${part} ")
    string(REGEX REPLACE ".* ([0-9]+).*" "\\1" ${part} "${line}")
  endforeach()
  set(${result} ${MAJOR}.${MINOR}.${PATCH} PARENT_SCOPE)
endfunction()

function(coupler_torch_targets root)
  add_library(coupler_torch_c10 SHARED IMPORTED GLOBAL)
  set_target_properties(coupler_torch_c10 PROPERTIES
    IMPORTED_LOCATION ${root}/lib/libc10.so IMPORTED_SONAME libc10.so)
  add_library(coupler_torch SHARED IMPORTED GLOBAL)
  set_target_properties(coupler_torch PROPERTIES
    IMPORTED_LOCATION ${root}/lib/libtorch_cpu.so IMPORTED_SONAME libtorch_cpu.so)
  target_include_directories(coupler_torch SYSTEM INTERFACE
    ${root}/include ${root}/include/torch/csrc/api/include)
  # NDEBUG always: LibTorch's headers differ without it, and its libraries are release builds.
  target_compile_definitions(coupler_torch INTERFACE _GLIBCXX_USE_CXX11_ABI=1 NDEBUG)
  # LibTorch 2.11's headers are C++17; newer ones reject less than C++20.
  file(STRINGS ${root}/include/ATen/ATen.h needs_20 REGEX "C[+][+]20 or later" LIMIT_COUNT 1)
  if(needs_20)
    target_compile_features(coupler_torch INTERFACE cxx_std_20)
  endif()
  target_link_libraries(coupler_torch INTERFACE coupler_torch_c10)
  add_library(coupler::torch ALIAS coupler_torch)
endfunction()

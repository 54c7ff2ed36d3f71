# coupler_precompile(target…): compiles <coupler/coupler.h>, which includes LibTorch, once for all the
# targets, before their C++ sources; a changed source then builds in a third of the time. The header
# takes as long as two sources, and 750 MB in the build folder. Installed: find_package(Coupler) and
# add_subdirectory of a checkout both provide it.
#
# The header is compiled with the options of the project's first target. A target with other options
# includes the headers themselves, as if it were not listed here.
function(coupler_precompile)
  if(NOT ARGN)
    message(FATAL_ERROR "coupler_precompile needs a target: coupler_precompile(<target>…)")
  endif()
  foreach(target IN LISTS ARGN)
    if(NOT TARGET ${target})
      message(FATAL_ERROR "coupler_precompile: target ${target} does not exist; call add_executable "
                          "or add_library first")
    endif()
    get_property(first GLOBAL PROPERTY COUPLER_PRECOMPILED_FOR)
    if(NOT first)
      target_precompile_headers(${target} PRIVATE <coupler/coupler.h>)
      set_property(GLOBAL PROPERTY COUPLER_PRECOMPILED_FOR ${target})
    elseif(NOT first STREQUAL target)
      target_precompile_headers(${target} REUSE_FROM ${first})
    endif()
  endforeach()
endfunction()

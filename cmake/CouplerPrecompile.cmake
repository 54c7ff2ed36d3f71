# coupler_precompile(target…): compiles <coupler/coupler.h>, which brings LibTorch, once for all the
# targets, before their C++ sources; a change in one of these is then built in a third of the time. The
# header takes as long as two sources, and 750 MB in the folder of the build. Installed:
# find_package(Coupler) and add_subdirectory of a checkout both bring it.
#
# The header is compiled as the first target of the project is. A target that is compiled with other
# options reads the headers themselves, as if it were not named here.
function(coupler_precompile)
  if(NOT ARGN)
    message(FATAL_ERROR "coupler_precompile needs a target: coupler_precompile(<target>…)")
  endif()
  foreach(target IN LISTS ARGN)
    if(NOT TARGET ${target})
      message(FATAL_ERROR "coupler_precompile: there is no target ${target}; add_executable or "
                          "add_library has to come first")
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

# coupler_precompile(target): the target's C++ sources that see LibTorch are compiled after
# host/precompiled.h, compiled once for all of them, which halves their time. Sources include what
# they need all the same: the debug preset builds without it.
option(COUPLER_PRECOMPILE "Compile LibTorch's headers once for all sources; takes 600 MB of disk" ON)

if(COUPLER_PRECOMPILE)
  # An object made with -fPIE cannot use a header compiled with -fPIC. One for all of them.
  set(CMAKE_CXX_COMPILE_OPTIONS_PIE ${CMAKE_CXX_COMPILE_OPTIONS_PIC})
endif()

function(coupler_precompile target)
  if(NOT COUPLER_PRECOMPILE)
    return()
  endif()
  if(NOT TARGET coupler_precompiled)
    add_library(coupler_precompiled OBJECT ${PROJECT_SOURCE_DIR}/host/precompiled.cc)
    coupler_settings(coupler_precompiled)
    target_link_libraries(coupler_precompiled PRIVATE coupler_core coupler::torch)
    target_precompile_headers(coupler_precompiled PRIVATE ${PROJECT_SOURCE_DIR}/host/precompiled.h)
  endif()
  target_precompile_headers(${target} REUSE_FROM coupler_precompiled)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # What ccache needs.
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
  endif()
endfunction()

# Every target below a folder that links libcoupler.
function(coupler_precompile_all folder)
  if(NOT COUPLER_PRECOMPILE)
    return()
  endif()
  get_property(targets DIRECTORY ${folder} PROPERTY BUILDSYSTEM_TARGETS)
  foreach(target IN LISTS targets)
    get_target_property(type ${target} TYPE)
    get_target_property(links ${target} LINK_LIBRARIES)
    if(type MATCHES "EXECUTABLE|OBJECT_LIBRARY|STATIC_LIBRARY" AND "${links}" MATCHES "coupler::coupler|e2e_checks")
      coupler_precompile(${target})
    endif()
  endforeach()
  get_property(folders DIRECTORY ${folder} PROPERTY SUBDIRECTORIES)
  foreach(below IN LISTS folders)
    coupler_precompile_all(${below})
  endforeach()
endfunction()

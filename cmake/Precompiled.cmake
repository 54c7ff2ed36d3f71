# coupler_use_precompiled(target): the target's C++ sources that include LibTorch use a header that is
# precompiled once for all of them, which halves their time: host/torch/precompiled.h; for tests, and for
# examples if tests are built, tests/precompiled.h. Sources still include what they need: the debug
# preset builds without it.
option(COUPLER_PRECOMPILE "Compile LibTorch's headers once for all sources; takes 600 MB of disk, and 700 for tests" ON)

if(COUPLER_PRECOMPILE)
  # An object compiled with -fPIE cannot use a header compiled with -fPIC; use one for all.
  set(CMAKE_CXX_COMPILE_OPTIONS_PIE ${CMAKE_CXX_COMPILE_OPTIONS_PIC})
endif()

# name: an object library that compiles folder's precompiled.h for other targets.
function(coupler_add_precompiled name folder)
  add_library(${name} OBJECT ${PROJECT_SOURCE_DIR}/host/torch/precompiled.cc)
  coupler_settings(${name})
  target_link_libraries(${name} PRIVATE ${ARGN})
  target_precompile_headers(${name} PRIVATE ${PROJECT_SOURCE_DIR}/${folder}/precompiled.h)
endfunction()

function(coupler_use_precompiled target)
  if(NOT COUPLER_PRECOMPILE)
    return()
  endif()
  get_target_property(folder ${target} SOURCE_DIR)
  set(precompiled coupler_precompiled)
  if("${folder}/" MATCHES "^${PROJECT_SOURCE_DIR}/tests/" OR
     (COUPLER_BUILD_TESTS AND "${folder}/" MATCHES "^${PROJECT_SOURCE_DIR}/examples/"))
    set(precompiled test_precompiled)
  endif()
  if(NOT TARGET ${precompiled})
    if(precompiled STREQUAL "test_precompiled")
      coupler_add_precompiled(test_precompiled tests coupler::coupler GTest::gtest)
      target_compile_options(test_precompiled PRIVATE ${COUPLER_QUICK_OPTIONS})
    else()
      coupler_add_precompiled(coupler_precompiled host/torch coupler_core coupler::torch)
    endif()
  endif()
  target_precompile_headers(${target} REUSE_FROM ${precompiled})
  if(precompiled STREQUAL "test_precompiled")
    # A precompiled header can only be used with the options it was compiled with.
    target_compile_options(${target} PRIVATE $<TARGET_PROPERTY:GTest::gtest,INTERFACE_COMPILE_OPTIONS>)
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # ccache needs this.
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
  endif()
endfunction()

# Every target below a folder that links libcoupler.
function(coupler_use_precompiled_all folder)
  if(NOT COUPLER_PRECOMPILE)
    return()
  endif()
  get_property(targets DIRECTORY ${folder} PROPERTY BUILDSYSTEM_TARGETS)
  foreach(target IN LISTS targets)
    get_target_property(type ${target} TYPE)
    get_target_property(links ${target} LINK_LIBRARIES)
    if(type MATCHES "EXECUTABLE|OBJECT_LIBRARY|STATIC_LIBRARY" AND "${links}" MATCHES "coupler::coupler|e2e_checks")
      coupler_use_precompiled(${target})
    endif()
  endforeach()
  get_property(folders DIRECTORY ${folder} PROPERTY SUBDIRECTORIES)
  foreach(below IN LISTS folders)
    coupler_use_precompiled_all(${below})
  endforeach()
endfunction()

# The target simgrid, if SimGrid is installed (Debian: libsimgrid-dev; tested with 3.32): bench/simulated and its test
# use it, and nothing that users get. Not with sanitizers or fuzzers, which do not know the stacks of its actors.
find_path(COUPLER_SIMGRID_INCLUDE simgrid/s4u.hpp)
find_library(COUPLER_SIMGRID_LIBRARY simgrid)
if(COUPLER_SIMGRID_INCLUDE AND COUPLER_SIMGRID_LIBRARY AND NOT COUPLER_SANITIZER AND NOT COUPLER_FUZZERS
   AND NOT TARGET simgrid)
  add_library(simgrid INTERFACE IMPORTED GLOBAL)
  target_include_directories(simgrid SYSTEM INTERFACE ${COUPLER_SIMGRID_INCLUDE})
  target_link_libraries(simgrid INTERFACE ${COUPLER_SIMGRID_LIBRARY})
  # Later versions rename what 3.32 offers.
  target_compile_options(simgrid INTERFACE -Wno-deprecated-declarations)
endif()

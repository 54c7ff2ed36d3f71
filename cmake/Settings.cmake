# Compiler settings shared by all targets: language, warnings, sanitizers, ccache, linker.
# coupler_settings(target) applies them.

set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
set(CMAKE_C_FLAGS_RELEASE "-O2 -DNDEBUG")
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")

# For tests, and examples if tests are built: they are compiled more often than they run, or spend their
# time in LibTorch and Coupler. So they are not optimized, which would take the compiler 40 % of its time.
set(COUPLER_QUICK_OPTIONS "")
if(CMAKE_BUILD_TYPE STREQUAL "Release" AND NOT COUPLER_FUZZERS)
  set(COUPLER_QUICK_OPTIONS -O0)
endif()

find_program(COUPLER_CCACHE ccache)
if(COUPLER_CCACHE)
  # Otherwise it caches nothing that uses a precompiled header.
  set(_launcher env CCACHE_SLOPPINESS=pch_defines,time_macros ${COUPLER_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${_launcher})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${_launcher})
endif()
find_program(COUPLER_MOLD mold)
if(COUPLER_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

if(COUPLER_SANITIZER STREQUAL "address")
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=undefined
                      -fno-omit-frame-pointer -g)
  add_link_options(-fsanitize=address,undefined)
elseif(COUPLER_SANITIZER STREQUAL "thread")
  # It does not know fences, and GCC says so. The one there is orders reads of other processes' memory, of which it knows
  # nothing either.
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer -g $<$<CXX_COMPILER_ID:GNU>:-Wno-tsan>)
  add_link_options(-fsanitize=thread)
  # This sanitizer does not support Asio's fences; Asio also uses locks.
  add_compile_definitions(BOOST_ASIO_DISABLE_FENCED_BLOCK)
elseif(COUPLER_SANITIZER)
  message(FATAL_ERROR "COUPLER_SANITIZER is '${COUPLER_SANITIZER}'; valid: address, thread, or empty")
endif()
if(COUPLER_FUZZERS)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang" OR COUPLER_SANITIZER)
    message(FATAL_ERROR "COUPLER_FUZZERS needs clang++ and sets its own sanitizers, so that "
                        "COUPLER_SANITIZER must be empty: use the preset fuzz.")
  endif()
  # Release, but with asserts and the standard library's checks.
  add_compile_options(-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined
                      -fno-omit-frame-pointer -g -UNDEBUG -D_GLIBCXX_ASSERTIONS)
  add_link_options(-fsanitize=address,undefined)
endif()
if(COUPLER_SANITIZER OR COUPLER_FUZZERS)
  add_compile_definitions(COUPLER_SANITIZED=1)
endif()

# Warnings are errors with the compilers that Coupler is developed with: others may warn about sound code, which
# must not end a user's build. GCC takes an inlined vector of two tensors for one of one; whether it does depends
# on the batch, and so on the machine's memory.
set(COUPLER_STRICTNESS "")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(COUPLER_STRICTNESS -Wno-array-bounds)
endif()
if((CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13) OR
   (CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 15))
  list(APPEND COUPLER_STRICTNESS -Werror)
endif()

function(coupler_settings target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wshadow ${COUPLER_STRICTNESS}
                         # Designated initializers leave fields at their documented defaults.
                         -Wno-missing-field-initializers
                         $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor>)
endfunction()

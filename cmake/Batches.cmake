# coupler_batch_all(folder): every target below folder compiles its C++ sources in batches, one
# compiler run for up to COUPLER_BATCH_SIZE sources, which saves most of the time that headers take.
# A batch is of one folder, or of whole small folders that follow each other; so names in unnamed
# namespaces have to differ within a folder (scripts/check-batches says which do not). A source still
# includes what it uses: the dev preset compiles each by itself.
#
# Alone is what is compiled in a way of its own (options, definitions, without the precompiled
# header), and what sets SKIP_UNITY_BUILD_INCLUSION.
option(COUPLER_BATCH "Compile sources in batches: faster from nothing, slower after a change" OFF)
# Of 40 that see LibTorch none takes 2 GB. More would leave processors idle at the end.
set(COUPLER_BATCH_SIZE 40 CACHE STRING "Sources in a batch, at most")

function(coupler_batch target)
  get_target_property(sources ${target} SOURCES)
  get_target_property(base ${target} SOURCE_DIR)
  set(folders)
  foreach(source IN LISTS sources)
    if(NOT source MATCHES "\\.cc$")
      continue()
    endif()
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${base} NORMALIZE)
    # What is made while building follows rules of its own: docs' pages have their names as they are.
    cmake_path(IS_PREFIX PROJECT_BINARY_DIR ${source} alone)
    foreach(property COMPILE_OPTIONS COMPILE_DEFINITIONS SKIP_PRECOMPILE_HEADERS
                     SKIP_UNITY_BUILD_INCLUSION)
      get_source_file_property(value ${source} TARGET_DIRECTORY ${target} ${property})
      if(value)
        set(alone ON)
      endif()
    endforeach()
    if(alone)
      continue()
    endif()
    cmake_path(GET source PARENT_PATH folder)
    string(MD5 key ${folder})
    list(APPEND folders ${key})
    list(APPEND sources_${key} ${source})
    list(APPEND batched ${source})
  endforeach()
  list(LENGTH batched count)
  if(count LESS 2)
    return()
  endif()

  list(REMOVE_DUPLICATES folders)
  set(batch 0)
  set(filled 0)
  foreach(key IN LISTS folders)
    list(LENGTH sources_${key} count)
    math(EXPR with "${filled} + ${count}")
    if(filled GREATER 0 AND with GREATER COUPLER_BATCH_SIZE)
      math(EXPR batch "${batch} + 1")
      set(filled 0)
    endif()
    # A large folder in even shares, so that its last is no smaller than the others.
    math(EXPR shares "(${count} + ${COUPLER_BATCH_SIZE} - 1) / ${COUPLER_BATCH_SIZE}")
    set(index 0)
    foreach(source IN LISTS sources_${key})
      math(EXPR group "${batch} + ${index} * ${shares} / ${count}")
      set_source_files_properties(${source} TARGET_DIRECTORY ${target} PROPERTIES
        UNITY_GROUP batch_${group})
      math(EXPR index "${index} + 1")
    endforeach()
    math(EXPR batch "${batch} + ${shares} - 1")
    math(EXPR filled "(${filled} + ${count} + ${shares} - 1) / ${shares}")
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  # A name of one source may shadow another source's; and to GCC a source is a header here, whose
  # classes should hold nothing of an unnamed namespace.
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-shadow>
                         $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
endfunction()

function(coupler_batch_all folder)
  get_property(targets DIRECTORY ${folder} PROPERTY BUILDSYSTEM_TARGETS)
  foreach(target IN LISTS targets)
    get_target_property(type ${target} TYPE)
    if(type MATCHES "EXECUTABLE|OBJECT_LIBRARY|STATIC_LIBRARY|SHARED_LIBRARY|MODULE_LIBRARY")
      coupler_batch(${target})
    endif()
  endforeach()
  get_property(below DIRECTORY ${folder} PROPERTY SUBDIRECTORIES)
  foreach(next IN LISTS below)
    coupler_batch_all(${next})
  endforeach()
endfunction()

# coupler_batch_all(folder): every target below folder compiles its C++ sources in batches, one
# compiler run for up to COUPLER_BATCH_SIZE sources, which saves most of the time that headers take.
# A batch has sources of one folder, or of consecutive whole small folders, so that names in unnamed
# namespaces must differ within a folder (scripts/check-batches lists those that do not). A source
# still includes what it uses: the dev preset compiles each one separately.
#
# Sources with their own settings (options, definitions, no precompiled header) and those that set
# SKIP_UNITY_BUILD_INCLUSION are compiled separately.
option(COUPLER_BATCH "Compile sources in batches: faster from scratch, slower after a change" OFF)
# A batch of 40 sources that include LibTorch takes less than 2 GB. Larger ones would leave cores idle at the end.
set(COUPLER_BATCH_SIZE 40 CACHE STRING "Maximum number of sources in a batch")

function(coupler_batch target)
  get_target_property(sources ${target} SOURCES)
  get_target_property(base ${target} SOURCE_DIR)
  set(folders)
  foreach(source IN LISTS sources)
    if(NOT source MATCHES "\\.cc$")
      continue()
    endif()
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${base} NORMALIZE)
    set(alone OFF)
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
    # Split a large folder evenly, so that its last batch is not smaller than the others.
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
  # A name of one source may shadow another source's. And GCC treats a source in a batch as a header,
  # and warns if its classes use types of an unnamed namespace.
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

# What `cmake --install` installs and where, what find_package(Coupler) finds there, and the Debian
# packages that `cpack` creates in a build of the preset `package`. LibTorch is not installed:
# `coupler setup-torch` fetches it.
include(CMakePackageConfigHelpers)

install(PROGRAMS scripts/install-torch DESTINATION ${CMAKE_INSTALL_LIBEXECDIR}/coupler COMPONENT program)

# Completion and man pages, where each shell and man look for them. Debian's zsh has a separate folder
# for files from packages, and does not read site-functions below /usr.
set(_words ${PROJECT_BINARY_DIR}/cli/words)
set(_zsh site-functions)
if(CMAKE_INSTALL_PREFIX STREQUAL "/usr")
  set(_zsh vendor-completions)
endif()
install(FILES ${_words}/coupler DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions COMPONENT program)
install(FILES ${_words}/_coupler DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/${_zsh} COMPONENT program)
install(FILES ${_words}/coupler.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d COMPONENT program)
install(DIRECTORY ${_words}/man1 DESTINATION ${CMAKE_INSTALL_MANDIR} COMPONENT program)
install(FILES LICENSE NOTICE CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/coupler COMPONENT program)

if(COUPLER_WITH_TORCH)
  set(_libraries coupler)
  set(_headers host/include/coupler)
  if(TARGET coupler_models)
    list(APPEND _libraries coupler_models)
    list(APPEND _headers models/include/coupler)
    install(TARGETS coupler_libtorch LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT program)
  endif()
  set_target_properties(${_libraries} PROPERTIES
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
    INSTALL_RPATH "$ORIGIN;${COUPLER_INSTALL_TORCH_ROOT}/lib")
  file(RELATIVE_PATH _to_libraries ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
  set_target_properties(coupler_self_test PROPERTIES
    INSTALL_RPATH "$ORIGIN/${_to_libraries};${COUPLER_INSTALL_TORCH_ROOT}/lib")
  # CMake reserves space for this path in the built files as empty elements at the end of their RPATH,
  # which the loader takes for the working directory. If one path serves both, no space is needed.
  if(COUPLER_INSTALL_TORCH_ROOT STREQUAL COUPLER_TORCH_ROOT AND _to_libraries STREQUAL "../lib")
    set_target_properties(${_libraries} coupler_self_test PROPERTIES BUILD_WITH_INSTALL_RPATH ON)
  endif()
  install(TARGETS ${_libraries}
          LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT program NAMELINK_COMPONENT development)
  install(DIRECTORY ${_headers}
          DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)
  # Finds Arrow where it was built; not in the Debian packages, since Debian has no Arrow.
  if(TARGET coupler_arrow)
    set_target_properties(coupler_arrow PROPERTIES
      INSTALL_RPATH ${COUPLER_ARROW_FOUND} BUILD_WITH_INSTALL_RPATH ON)
    install(TARGETS coupler_arrow LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT arrow)
  endif()
  set(_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Coupler)
  configure_package_config_file(cmake/CouplerConfig.cmake.in ${PROJECT_BINARY_DIR}/CouplerConfig.cmake
    INSTALL_DESTINATION ${_package_dir} PATH_VARS CMAKE_INSTALL_INCLUDEDIR CMAKE_INSTALL_LIBDIR
    NO_CHECK_REQUIRED_COMPONENTS_MACRO)
  write_basic_package_version_file(${PROJECT_BINARY_DIR}/CouplerConfigVersion.cmake
    COMPATIBILITY SameMinorVersion)
  install(FILES ${PROJECT_BINARY_DIR}/CouplerConfig.cmake ${PROJECT_BINARY_DIR}/CouplerConfigVersion.cmake
                cmake/TorchTargets.cmake cmake/CouplerPrecompile.cmake
          DESTINATION ${_package_dir} COMPONENT development)
endif()

# ---- Debian packages: coupler, coupler-dev, and one for each plugin ----
set(CPACK_GENERATOR DEB)
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_PACKAGE_NAME coupler)
set(CPACK_PACKAGE_VENDOR "The Coupler authors")
set(CPACK_PACKAGE_CONTACT "The Coupler authors <coupler@localhost>")
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/packages)
set(CPACK_STRIP_FILES ON)
# Independent of the builder's umask.
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
    OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
# Dependencies from the libraries that are linked; LibTorch's are not in any package.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${COUPLER_TORCH_ROOT}/lib ${CMAKE_LIBRARY_OUTPUT_DIRECTORY})
set(CPACK_COMPONENTS_ALL program development api)
# Empty: each package's description has its own first line.
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "")
set(CPACK_DEBIAN_PROGRAM_PACKAGE_NAME coupler)
set(CPACK_DEBIAN_PROGRAM_DESCRIPTION
    "distributed training of LibTorch models in C++: program and library
One training loop in C++ for one process or many, over any of several
backends, which a TOML file chooses. `coupler launch` starts the processes.
LibTorch is not in this package: `coupler setup-torch` fetches it.")
set(CPACK_DEBIAN_PROGRAM_PACKAGE_RECOMMENDS "python3-pip, coupler-gloo-cpu, coupler-fsdp, coupler-deepspeed-like")
set(CPACK_COMPONENT_DEVELOPMENT_GROUP headers)
set(CPACK_COMPONENT_API_GROUP headers)
set(CPACK_DEBIAN_HEADERS_PACKAGE_NAME coupler-dev)
set(CPACK_DEBIAN_HEADERS_DESCRIPTION
    "distributed training of LibTorch models in C++: headers and CMake files
find_package(Coupler) for programs, find_package(coupler-api) for backends,
the skeletons that `coupler new` copies, and the matrix of checks that
`coupler check-plugin` runs over a backend.")
set(CPACK_DEBIAN_HEADERS_PACKAGE_DEPENDS "coupler (= ${PROJECT_VERSION}), nlohmann-json3-dev")
set(CPACK_DEBIAN_HEADERS_PACKAGE_RECOMMENDS "cmake, g++, make")
set(_packages program:coupler development:coupler-dev)
get_property(_plugins GLOBAL PROPERTY COUPLER_PLUGINS)
foreach(plugin ${_plugins})
  get_target_property(_description coupler_${plugin} COUPLER_DESCRIPTION)
  get_target_property(_depends coupler_${plugin} COUPLER_DEPENDS)
  string(REPLACE "_" "-" _name coupler-${plugin})
  string(TOUPPER ${plugin} _component)
  list(APPEND CPACK_COMPONENTS_ALL ${plugin})
  list(APPEND _packages ${plugin}:${_name})
  set(CPACK_DEBIAN_${_component}_PACKAGE_NAME ${_name})
  set(CPACK_DEBIAN_${_component}_DESCRIPTION
      "distributed training of LibTorch models in C++: backend ${plugin}\n${_description}.")
  set(CPACK_DEBIAN_${_component}_PACKAGE_DEPENDS "coupler (= ${PROJECT_VERSION})")
  if(_depends)
    string(APPEND CPACK_DEBIAN_${_component}_PACKAGE_DEPENDS ", ${_depends}")
  endif()
endforeach()
if(CMAKE_INSTALL_PREFIX STREQUAL "/usr")
  foreach(pair ${_packages})
    string(REPLACE ":" ";" pair ${pair})
    list(GET pair 0 _component)
    list(GET pair 1 _name)
    install(FILES packaging/copyright DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${_name} COMPONENT ${_component})
  endforeach()
endif()
include(CPack)

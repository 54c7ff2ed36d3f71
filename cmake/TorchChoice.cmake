# Selects LibTorch: COUPLER_TORCH_ROOT, its torch folder, and COUPLER_TORCH_WHEEL, its version, which
# `coupler setup-torch` fetches for an installation of this build.
set(COUPLER_TORCH_ROOT "" CACHE PATH
    "The torch folder of a LibTorch wheel or archive, 2.11 or newer. Empty: the environment's COUPLER_TORCH_ROOT, else the one that scripts/setup fetched")
set(COUPLER_INSTALL_TORCH_ROOT "" CACHE PATH
    "Where installed libraries and programs look for LibTorch. Empty: COUPLER_TORCH_ROOT, or for an installation in /usr the folder of `coupler setup-torch`")
include(${CMAKE_CURRENT_LIST_DIR}/TorchTargets.cmake)

file(STRINGS ${PROJECT_SOURCE_DIR}/scripts/install-torch COUPLER_TORCH_WHEEL REGEX "^version=")
string(REPLACE "version=" "" COUPLER_TORCH_WHEEL "${COUPLER_TORCH_WHEEL}")
set(_chosen ${PROJECT_SOURCE_DIR}/.deps/torch-version)
if(EXISTS ${_chosen})
  file(STRINGS ${_chosen} COUPLER_TORCH_WHEEL)
endif()
if(NOT COUPLER_TORCH_ROOT)
  set(COUPLER_TORCH_ROOT "$ENV{COUPLER_TORCH_ROOT}")
endif()
if(NOT COUPLER_TORCH_ROOT)
  set(COUPLER_TORCH_ROOT ${PROJECT_SOURCE_DIR}/.deps/torch-${COUPLER_TORCH_WHEEL}/torch)
endif()
coupler_torch_version(${COUPLER_TORCH_ROOT} COUPLER_TORCH_VERSION)
if(COUPLER_TORCH_VERSION)
  set(COUPLER_TORCH_WHEEL ${COUPLER_TORCH_VERSION})
endif()

if(NOT COUPLER_INSTALL_TORCH_ROOT)
  set(COUPLER_INSTALL_TORCH_ROOT ${COUPLER_TORCH_ROOT})
  if(CMAKE_INSTALL_PREFIX STREQUAL "/usr")
    set(COUPLER_INSTALL_TORCH_ROOT /opt/coupler/torch-${COUPLER_TORCH_WHEEL}/torch)
  endif()
endif()

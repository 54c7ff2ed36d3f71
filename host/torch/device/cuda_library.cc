#include "device/cuda_library.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <string_view>

namespace coupler {
namespace {

// From the driver's interface (cuda.h), which the build must not need.
using Initialise = int (*)(unsigned);
using GetNumber = int (*)(int*);
constexpr int kNoDevice = 100;

struct Driver {
  int devices = 0;
  int version = 0;  // 13000 is CUDA 13.0
  std::string missing;
};

Driver ask_driver() {
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return {.missing = "there is no NVIDIA driver (libcuda.so.1)"};
  const auto initialise = reinterpret_cast<Initialise>(::dlsym(library, "cuInit"));
  const auto count = reinterpret_cast<GetNumber>(::dlsym(library, "cuDeviceGetCount"));
  const auto version = reinterpret_cast<GetNumber>(::dlsym(library, "cuDriverGetVersion"));
  if (initialise == nullptr || count == nullptr || version == nullptr) {
    return {.missing = "libcuda.so.1 is not NVIDIA's driver library"};
  }
  Driver result;
  const int status = initialise(0);
  if (status != 0 && status != kNoDevice) {
    return {.missing =
                fmt::format("the NVIDIA driver does not start (error {} from cuInit)", status)};
  }
  if (status == kNoDevice || count(&result.devices) != 0 || result.devices == 0) {
    return {.missing = "the NVIDIA driver shows no device (see CUDA_VISIBLE_DEVICES)"};
  }
  version(&result.version);
  return result;
}

std::filesystem::path folder_of_libtorch() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&at::globalContext), &info) == 0) return {};
  return std::filesystem::path(info.dli_fname).parent_path();
}

std::string shown(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

std::string open_library() {
  const char* const wanted = std::getenv("COUPLER_TRAINING_DEVICE");
  if (wanted != nullptr && std::string_view(wanted) == "cpu") {
    return "COUPLER_TRAINING_DEVICE is cpu";
  }
  const Driver driver = ask_driver();
  if (!driver.missing.empty()) return driver.missing;
  // It is already loaded if the program links it.
  if (::dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD) == nullptr) {
    const std::filesystem::path path = folder_of_libtorch() / "libtorch_cuda.so";
    std::error_code ignored;
    if (!std::filesystem::exists(path, ignored)) {
      return fmt::format("the LibTorch in {} is built without CUDA", path.parent_path().string());
    }
    if (::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) {
      return fmt::format("LibTorch's CUDA libraries are not all installed: {}", ::dlerror());
    }
  }
  const at::CUDAHooksInterface& hooks = at::detail::getCUDAHooks();
  if (hooks.hasCUDA()) return {};
  const int needed = hooks.hasCUDART() ? static_cast<int>(hooks.versionCUDART()) : 0;
  if (driver.version < needed) {
    return fmt::format("the NVIDIA driver is too old: it supports CUDA {}, LibTorch needs {}",
                       shown(driver.version), shown(needed));
  }
  return "LibTorch sees no CUDA device although the driver has one; it was queried before its CUDA "
         "libraries were loaded, or is built for other devices";
}

}  // namespace

const std::string& why_no_cuda() {
  static const std::string kReason = open_library();
  return kReason;
}

namespace {
[[gnu::constructor]] void open_at_start() { why_no_cuda(); }
}  // namespace

}  // namespace coupler

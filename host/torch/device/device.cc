#include "device/device.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <coupler/error.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "base/error.h"
#include "base/log.h"

namespace coupler::device {
namespace {

// From the driver's interface (cuda.h), which the build must not need.
using Initialize = int (*)(unsigned);
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
  const auto initialize = reinterpret_cast<Initialize>(::dlsym(library, "cuInit"));
  const auto count = reinterpret_cast<GetNumber>(::dlsym(library, "cuDeviceGetCount"));
  const auto version = reinterpret_cast<GetNumber>(::dlsym(library, "cuDriverGetVersion"));
  if (initialize == nullptr || count == nullptr || version == nullptr) {
    return {.missing = "libcuda.so.1 is not NVIDIA's driver library"};
  }
  Driver result;
  const int status = initialize(0);
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

[[gnu::constructor]] void open_at_start() { why_no_cuda(); }

[[noreturn]] void refuse_device(const std::string& wanted, const std::string& why,
                                const char* hint) {
  fail_config(fmt::format("training.device is \"{}\": {}", wanted, why), "training.device", hint);
}

c10::Device parse(const std::string& wanted) {
  try {
    return c10::Device(wanted);
  } catch (const c10::Error&) {
    refuse_device(wanted, "LibTorch does not know this device",
                  "use \"auto\", \"cpu\", \"cuda\" or \"cuda:1\"");
  }
}

}  // namespace

const std::string& why_no_cuda() {
  static const std::string kReason = open_library();
  return kReason;
}

c10::Device choose_device(const std::string& wanted, const rendezvous::ProcessInfo& process) {
  if (wanted == "auto") {
    if (why_no_cuda().empty()) return choose_device("cuda", process);
    if (process.rank == 0) {
      log(LogLevel::kInfo, "device", "training on the CPU: " + why_no_cuda());
    }
    return c10::kCPU;
  }
  const c10::Device named = parse(wanted);
  if (named.is_cpu()) return c10::kCPU;
  if (named.is_cuda() && !why_no_cuda().empty()) {
    refuse_device(
        wanted, why_no_cuda(),
        "install the driver, or LibTorch's CUDA libraries with `scripts/setup --cuda`; or use "
        "training.device = \"cpu\"");
  }
  if (named.is_meta() || !c10::impl::hasDeviceGuardImpl(named.type())) {
    refuse_device(wanted, "this LibTorch cannot compute on it",
                  "use \"auto\", \"cpu\" or \"cuda\"");
  }
  const int count = c10::impl::VirtualGuardImpl(named.type()).deviceCount();
  if (count == 0) refuse_device(wanted, "no such device found", "use training.device = \"cpu\"");
  if (named.has_index()) {
    if (named.index() < count) return named;
    refuse_device(wanted, fmt::format("this process sees {} of them, numbered from 0", count),
                  "name one of these, or omit the number: then each process takes its own");
  }
  return {named.type(), static_cast<c10::DeviceIndex>(process.local_rank % count)};
}

void make_current(c10::Device device) {
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
}

void throw_out_of_memory(const c10::OutOfMemoryError& cause, const std::string& what,
                         const std::string& largest) {
  // LibTorch's first line contains the requested size, the total and the free memory.
  const std::string_view text = cause.what_without_backtrace();
  throw Error(
      ErrorCode::kOutOfMemory,
      fmt::format("no room for {}{}: {}", what,
                  largest.empty() ? "" : fmt::format(", the largest piece being {}", largest),
                  text.substr(0, text.find('\n'))),
      {.subject = what,
       .hint = "use a smaller batch, training.mixed_precision = \"bf16\", "
               "memory.activation_checkpointing, or a backend that shards or offloads the model; "
               "`coupler config recommend` finds a configuration that fits"});
}

}  // namespace coupler::device

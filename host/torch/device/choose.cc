#include "device/choose.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <coupler/error.h>
#include <fmt/format.h>

#include "base/log.h"
#include "device/cuda_library.h"

namespace coupler {
namespace {

[[noreturn]] void refuse_device(const std::string& wanted, const std::string& why,
                                const char* hint) {
  throw Error(ErrorCode::kConfig, fmt::format("training.device is \"{}\": {}", wanted, why),
              {.subject = "training.device", .hint = hint});
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

c10::Device choose_device(const std::string& wanted, const ProcessInfo& process) {
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

}  // namespace coupler

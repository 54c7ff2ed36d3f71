#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "cli/doctor/checks.h"
#include "cli/machine/system_info.h"
#include "cli/machine/torch_info.h"
#include "cli/text/output.h"

namespace coupler::cli {
namespace {

constexpr const char* kBuiltFor = COUPLER_TORCH_WHEEL;

// "2.11" of "2.11.0+cu130".
std::string minor_of(const std::string& version) {
  const size_t first = version.find('.');
  return version.substr(0, version.find('.', first == std::string::npos ? first : first + 1));
}

Finding missing(const std::string& where) {
  const char* const named = std::getenv("COUPLER_TORCH_ROOT");
  const bool own = named != nullptr && *named != '\0';
  return {Level::kError,
          fmt::format("LibTorch not found: {}/lib/libtorch_cpu.so does not exist", where),
          "training programs cannot be built or started",
          own ? "set COUPLER_TORCH_ROOT to the folder that contains lib/libtorch_cpu.so, or unset "
                "it and run: coupler setup-torch"
              : "coupler setup-torch"};
}

}  // namespace

Findings check_torch(const config::Config&) {
  const TorchInfo torch = torch_info();
  const std::string library = torch.root + "/lib/libtorch_cpu.so";
  std::error_code unreadable;
  if (torch.root.empty() || !std::filesystem::exists(library, unreadable)) {
    return {missing(torch.root.empty() ? expected_torch_root() : torch.root)};
  }
  if (dlopen(library.c_str(), RTLD_LAZY | RTLD_LOCAL) == nullptr) {
    return {{Level::kError, one_line(fmt::format("LibTorch cannot be loaded: {}", dlerror())),
             "training programs cannot be started",
             "reinstall it: remove " + torch.root + ", then run coupler setup-torch"}};
  }
  if (torch.version.empty()) {
    return {
        {Level::kWarning,
         fmt::format("LibTorch in {} loads, but its version is unknown", torch.root),
         fmt::format("Coupler was built for {}; with another minor version, programs crash or do "
                     "not start",
                     kBuiltFor),
         "coupler setup-torch, and unset COUPLER_TORCH_ROOT"}};
  }
  if (minor_of(torch.version) != minor_of(kBuiltFor)) {
    return {{Level::kWarning, fmt::format("LibTorch {} in {}", torch.version, torch.root),
             fmt::format("Coupler was built for {}; libcoupler works only with that minor version",
                         kBuiltFor),
             "coupler setup-torch, and unset COUPLER_TORCH_ROOT; or rebuild Coupler with "
             "-DCOUPLER_TORCH_ROOT=" +
                 torch.root}};
  }
  return {{Level::kOk, describe(torch) + "; its libraries load"}};
}

namespace {

namespace fs = std::filesystem;

// The oldest NVIDIA driver for each major version of CUDA.
constexpr std::array<std::pair<int, int>, 3> kOldestDriver = {{{11, 450}, {12, 525}, {13, 580}}};

int oldest_driver(const std::string& cuda) {
  const int major = std::atoi(cuda.c_str());
  int oldest = 0;
  for (const auto& [version, driver] : kOldestDriver) {
    if (version <= major) oldest = driver;
  }
  return oldest;
}

// The command that installs LibTorch's CUDA libraries, into this LibTorch's folder if it can.
std::string cuda_command(const TorchInfo& torch) {
  const fs::path prefix = fs::path(torch.root).parent_path().parent_path();
  if (prefix.filename() == ".deps") {
    return fmt::format("cd {} && scripts/setup --cuda", prefix.parent_path().string());
  }
  if (torch.root.empty() || prefix == default_torch_prefix()) return "coupler setup-torch --cuda";
  return "coupler setup-torch --cuda, and unset COUPLER_TORCH_ROOT";
}

Findings check_cuda_part(const GpuInfo& gpu, const config::Config& config) {
  const TorchInfo torch = torch_info();
  if (torch.root.empty()) return {};  // reported by check_torch()
  const std::string library = torch.root + "/lib/libtorch_cuda.so";
  const Level level =
      config.training.device.rfind("cuda", 0) == 0 ? Level::kError : Level::kWarning;
  constexpr const char* kWhy =
      "training runs on the CPU, and no backend for CUDA devices can be used";
  if (access(library.c_str(), F_OK) != 0) {
    return {{level, fmt::format("LibTorch in {} is built for the CPU only", torch.root), kWhy,
             cuda_command(torch)}};
  }
  const int oldest = oldest_driver(torch.cuda);
  if (std::atoi(gpu.driver.c_str()) < oldest) {
    return {
        {level,
         fmt::format("driver {} is too old for CUDA {}, which LibTorch is built for", gpu.driver,
                     torch.cuda),
         kWhy,
         fmt::format("install NVIDIA driver {} or newer, or use a LibTorch built for an older CUDA "
                     "(COUPLER_TORCH_ROOT)",
                     oldest)}};
  }
  if (dlopen(library.c_str(), RTLD_LAZY | RTLD_LOCAL) == nullptr) {
    return {{level, one_line(fmt::format("LibTorch's CUDA libraries do not load: {}", dlerror())),
             kWhy, cuda_command(torch)}};
  }
  const std::string found = nccl_version(torch);
  if (found == "none") {
    return {{Level::kWarning, "LibTorch's CUDA libraries load, but NCCL is missing",
             "GPUs communicate through host memory, which is slower", cuda_command(torch)}};
  }
  return {{Level::kOk, fmt::format("LibTorch's CUDA libraries load; NCCL {}", found)}};
}

}  // namespace

Findings check_gpus(const config::Config& config) {
  const GpuInfo gpu = gpu_info();
  const bool wanted = config.training.device.rfind("cuda", 0) == 0;
  const Level level = wanted ? Level::kError : Level::kWarning;
  if (gpu.driver.empty()) {
    if (gpu.cards == 0 && !wanted) return {{Level::kOk, "no NVIDIA GPU; training runs on the CPU"}};
    if (gpu.cards == 0) {
      return {{level,
               fmt::format("training.device = \"{}\", but there is no NVIDIA GPU",
                           one_line(config.training.device)),
               "training fails at its start", "-o training.device=auto"}};
    }
    return {{level, fmt::format("the NVIDIA driver is not loaded; GPUs: {}", describe_gpus(gpu)),
             "training runs on the CPU",
             install_command("nvidia-driver") + "; in a container: docker run --gpus all"}};
  }
  if (access("/dev/nvidiactl", R_OK | W_OK) != 0) {
    return {{level,
             fmt::format("driver {} is loaded, but /dev/nvidiactl cannot be opened", gpu.driver),
             "training runs on the CPU",
             "in a container: docker run --gpus all; otherwise: ls -l /dev/nvidia*"}};
  }
  Findings findings = {
      {Level::kOk, fmt::format("driver {}; GPUs: {}", gpu.driver, one_line(describe_gpus(gpu)))}};
  for (Finding& finding : check_cuda_part(gpu, config)) findings.push_back(std::move(finding));
  return findings;
}

}  // namespace coupler::cli

#include "cli/machine/torch_info.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cctype>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/process.h"
#include "base/text.h"
#include "cli/machine/text_values.h"

namespace coupler::cli {
namespace {

// The folder that scripts/install-torch creates.
std::string below(const std::string& prefix) {
  return prefix + "/torch-" COUPLER_TORCH_WHEEL "/torch";
}

std::string users_prefix() {
  const std::string data = environment_value("XDG_DATA_HOME"), home = environment_value("HOME");
  return (data.empty() ? home + "/.local/share" : data) + "/coupler";
}

constexpr const char* kSystemPrefix = "/opt/coupler";

}  // namespace

std::string expected_torch_root() {
  const std::string named = environment_value("COUPLER_TORCH_ROOT");
  return named.empty() ? COUPLER_TORCH_ROOT : named;
}

std::string torch_root() {
  if (!environment_value("COUPLER_TORCH_ROOT").empty()) return expected_torch_root();
  for (const std::string& root :
       {expected_torch_root(), below(users_prefix()), below(kSystemPrefix)}) {
    std::error_code ignored;
    if (std::filesystem::exists(root + "/lib/libtorch_cpu.so", ignored)) return root;
  }
  return {};
}

std::string default_torch_prefix() { return geteuid() == 0 ? kSystemPrefix : users_prefix(); }

namespace {

namespace fs = std::filesystem;

// The version in version.h, for a LibTorch without Python, which lacks version.py.
std::string version_of_header(const std::string& root) {
  const std::string header = root + "/include/torch/headeronly/version.h";
  return version_in(header, {"TORCH_VERSION_MAJOR", "TORCH_VERSION_MINOR", "TORCH_VERSION_PATCH"});
}

// "cuda: Optional[str] = '13.0'", or None.
std::string cuda_of(const std::string& root) {
  std::string value = value_in(root + "/version.py", "cuda").value_or("");
  value.erase(
      0, value.rfind('\'') == std::string::npos ? value.rfind(' ') + 1 : value.rfind('\'') + 1);
  return value.empty() || std::isdigit(static_cast<unsigned char>(value[0])) == 0 ? "" : value;
}

bool file_exists(const fs::path& file) {
  std::error_code unreadable;
  return fs::exists(file, unreadable);
}

// The version of a wheel, from its folder NAME-VERSION.dist-info among the packages.
std::string wheel_version(const fs::path& packages, std::string_view name) {
  for (const fs::path& entry : entries_of(packages, name)) {
    const std::string folder = entry.filename().string();
    constexpr std::string_view kSuffix = ".dist-info";
    if (!folder.ends_with(kSuffix)) continue;
    const size_t dash = folder.rfind('-', folder.size() - kSuffix.size() - 1);
    return folder.substr(dash + 1, folder.size() - kSuffix.size() - dash - 1);
  }
  return "";
}

// The version in the name libnccl.so.2.18.5, to which libnccl.so.2 links.
std::string name_version(const fs::path& file) {
  std::error_code failed;
  const std::string name = fs::canonical(file, failed).filename().string();
  constexpr std::string_view kStart = "libnccl.so.";
  return name.rfind(kStart, 0) == 0 && name.find('.', kStart.size()) != std::string::npos
             ? name.substr(kStart.size())
             : "";
}

// In the order in which the backend for it searches.
std::vector<fs::path> nccl_folders(const TorchInfo& torch) {
  std::vector<fs::path> folders;
  for (const std::string& folder : split(environment_value("COUPLER_NCCL_PATH"), ':')) {
    if (!folder.empty()) folders.emplace_back(folder);
  }
  if (!torch.root.empty())
    folders.push_back(fs::path(torch.root).parent_path() / "nvidia/nccl/lib");
  for (const char* folder : {"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu",
                             "/usr/lib64", "/usr/lib", "/usr/local/cuda/lib64"}) {
    folders.emplace_back(folder);
  }
  return folders;
}

}  // namespace

TorchInfo torch_info() {
  TorchInfo torch;
  torch.root = torch_root();
  if (torch.root.empty()) return torch;
  torch.version = value_in(torch.root + "/version.py", "__version__").value_or("");
  if (torch.version.empty()) torch.version = version_of_header(torch.root);
  torch.cuda = cuda_of(torch.root);
  return torch;
}

std::string describe(const TorchInfo& torch) {
  if (torch.version.empty()) {
    return fmt::format("none in {} (run coupler setup-torch, or set COUPLER_TORCH_ROOT)",
                       expected_torch_root());
  }
  const bool has_cuda = file_exists(torch.root + "/lib/libtorch_cuda.so");
  const std::string build = !torch.cuda.empty() ? "built for CUDA " + torch.cuda
                            : has_cuda          ? "built for CUDA"
                                                : "CPU only";
  return fmt::format("{}, {} ({})", torch.version, torch.root, build);
}

std::string nccl_version(const TorchInfo& torch) {
  for (const fs::path& folder : nccl_folders(torch)) {
    const fs::path file = folder / "libnccl.so.2";
    if (!file_exists(file)) continue;
    std::string version = name_version(file);
    // …/nvidia/nccl/lib
    if (version.empty()) {
      version = wheel_version(folder.parent_path().parent_path().parent_path(), "nvidia_nccl");
    }
    return fmt::format("{}, {}", version.empty() ? "unknown version" : version, file.string());
  }
  return "none";
}

}  // namespace coupler::cli

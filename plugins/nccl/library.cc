#include "nccl/library.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace db::nccl {

// The shared libraries of this process, and where others may be found. Pure functions over the
// dynamic linker's list; [any-thread].

namespace {

namespace fs = std::filesystem;

std::string real_path(const fs::path& path) {
  std::error_code error;
  const fs::path resolved = fs::canonical(path, error);
  return error ? path : resolved;
}

bool is_there(const fs::path& file) {
  std::error_code ignored;
  return fs::exists(file, ignored);
}

// The path of an open library.
std::string path_of(void* library) {
  const link_map* map = nullptr;
  if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr) return "?";
  return real_path(map->l_name);
}

std::string variable(const char* name) {
  const char* const value = secure_getenv(name);
  return value != nullptr ? value : "";
}

std::vector<fs::path> explicit_folders() {
  std::istringstream list(variable("COUPLER_NCCL_PATH"));
  std::vector<fs::path> folders;
  for (std::string folder; std::getline(list, folder, ':');)
    if (!folder.empty()) folders.emplace_back(folder);
  return folders;
}

// The folders in which pip puts NVIDIA's wheels.
void add_wheels(const fs::path& packages, std::vector<fs::path>* folders) {
  for (const char* const below : {"nccl", "cu13", "cuda_runtime"})
    folders->push_back(packages / "nvidia" / below / "lib");
}

// The LibTorch that launched programs will use, found as in cli/machine/torch_info.cc.
std::string torch_root() {
  std::string root = variable("COUPLER_TORCH_ROOT");
#ifdef COUPLER_NCCL_TORCH_ROOT
  if (!root.empty()) return root;
  const std::string data = variable("XDG_DATA_HOME");
  const std::string fetched = "/coupler/torch-" COUPLER_NCCL_TORCH_WHEEL "/torch";
  for (std::string at :
       {std::string(COUPLER_NCCL_TORCH_ROOT),
        (data.empty() ? variable("HOME") + "/.local/share" : data) + fetched, "/opt" + fetched}) {
    if (is_there(at + "/lib/libtorch_cpu.so")) return at;
  }
#endif
  return root;
}

// The real paths of loaded libraries whose file name begins with prefix ("libnccl.so"); each once.
std::vector<std::string> loaded_libraries(std::string_view prefix) {
  struct Search {
    std::string_view prefix;
    std::vector<std::string> found;
  } search{prefix, {}};
  const auto visit = [](dl_phdr_info* info, size_t, void* data) {
    auto& [wanted, found] = *static_cast<Search*>(data);
    if (info->dlpi_name == nullptr) return 0;
    const fs::path path = info->dlpi_name;
    if (!path.filename().string().starts_with(wanted)) return 0;
    std::string real = real_path(path);
    if (std::find(found.begin(), found.end(), real) == found.end())
      found.push_back(std::move(real));
    return 0;
  };
  dl_iterate_phdr(visit, &search);
  return search.found;
}

// The folders to search before the system's, in order: those of COUPLER_NCCL_PATH (ignored in
// set-user-ID programs, like LD_LIBRARY_PATH), then those of pip's NVIDIA wheels next to LibTorch
// (the loaded one, then the one that launched programs will load).
std::vector<fs::path> library_folders() {
  std::vector<fs::path> folders = explicit_folders();
  for (const fs::path torch : loaded_libraries("libc10.so")) {
    // …/site-packages/torch/lib/libc10.so
    add_wheels(torch.parent_path().parent_path().parent_path(), &folders);
  }
  // A program without LibTorch, such as the launcher, searches on behalf of those that have it.
  if (const fs::path torch = torch_root(); !torch.empty())
    add_wheels(torch.parent_path(), &folders);
  return folders;
}

// The first of names that exists in the first folder that has one; empty if there is none.
fs::path find_in(const std::vector<fs::path>& folders, const std::vector<std::string>& names) {
  for (const fs::path& folder : folders)
    for (const std::string& name : names)
      if (is_there(folder / name)) return folder / name;
  return {};
}

// Opens the first available library of names, already loaded or not. *path: its real path. On
// failure the result is NULL and *problem, which was empty, is the reason.
void* open_library(const std::vector<std::string>& names, std::string* path, std::string* problem) {
  constexpr int kFlags = RTLD_NOW | RTLD_LOCAL;
  void* library = nullptr;
  for (const std::string& name : names)
    if (library == nullptr) library = dlopen(name.c_str(), kFlags | RTLD_NOLOAD);
  if (library == nullptr) {
    // A file that cannot be opened ends the search: no other one is silently used instead.
    const fs::path file = find_in(library_folders(), names);
    for (const std::string& name : file.empty() ? names : std::vector{file.string()}) {
      if (library == nullptr) library = dlopen(name.c_str(), kFlags);
      if (library == nullptr && problem->empty()) *problem = dlerror();
    }
  }
  if (library == nullptr) return nullptr;
  problem->clear();
  *path = path_of(library);
  return library;
}

// The first version with ncclCommSplit and error messages.
constexpr int kOldestNccl = 21800;
constexpr char kNcclFile[] = "libnccl.so";

std::string cuda_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string nccl_text(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

// Fills in one pointer; *missing gets the first symbol that the library lacks.
template <class Function>
void fill(void* library, const char* symbol, Function* function, std::string* missing) {
  *function = reinterpret_cast<Function>(dlsym(library, symbol));
  if (*function == nullptr && missing->empty()) *missing = symbol;
}

std::string open_cuda(Libraries* found) {
  std::string problem, missing;
  void* const library = open_library({"libcudart.so.13", "libcudart.so.12", "libcudart.so"},
                                     &found->cuda_path, &problem);
  if (library == nullptr)
    return "no CUDA runtime (libcudart) was found: " + problem +
           "; install LibTorch's CUDA wheels or the CUDA toolkit, or name the folder in "
           "COUPLER_NCCL_PATH";
#define COUPLER_FILL(name, result, arguments) \
  fill(library, "cuda" #name, &found->cuda.name, &missing);
  COUPLER_CUDA_FUNCTIONS(COUPLER_FILL)
#undef COUPLER_FILL
  if (!missing.empty())
    return found->cuda_path + " lacks " + missing + ": CUDA 11.2 or newer is needed";
  return "";
}

// Also opens the driver; without a driver, every call except the version queries fails.
std::string count_devices(Libraries* found) {
  const Cuda& cuda = found->cuda;
  if (cuda.RuntimeGetVersion(&found->runtime_version) != cudaSuccess) found->runtime_version = 0;
  if (cuda.DriverGetVersion(&found->driver_version) != cudaSuccess) found->driver_version = 0;
  if (found->driver_version == 0)
    return "no NVIDIA driver was found (CUDA runtime " + cuda_text(found->runtime_version) + ", " +
           found->cuda_path + ")";
  int devices = 0;
  const cudaError_t error = cuda.GetDeviceCount(&devices);
  if (error == cudaErrorInsufficientDriver)
    return "the NVIDIA driver is too old: it supports CUDA " + cuda_text(found->driver_version) +
           " and older, but the CUDA runtime is " + cuda_text(found->runtime_version) + " (" +
           found->cuda_path + "); update the driver, or use a LibTorch built for CUDA " +
           cuda_text(found->driver_version);
  if (error != cudaSuccess && error != cudaErrorNoDevice)
    return std::string("the CUDA devices cannot be counted: ") + cuda.GetErrorName(error) + " (" +
           cuda.GetErrorString(error) + ")";
  if (error == cudaErrorNoDevice || devices == 0)
    return "no CUDA device was found (driver for CUDA " + cuda_text(found->driver_version) +
           "); CUDA_VISIBLE_DEVICES may hide them";
  found->devices = devices;
  return "";
}

// Whether an NCCL other than the one the user chose is already loaded.
std::string check_loaded_nccl(const std::vector<std::string>& names) {
  const std::vector<std::string> loaded = loaded_libraries(kNcclFile);
  const fs::path file = find_in(explicit_folders(), names);
  const std::string wanted = file.empty() ? "" : real_path(file);
  if (loaded.empty() || wanted.empty() || loaded[0] == wanted) return "";
  return "another NCCL is already loaded in this process: " + loaded[0] +
         ", while COUPLER_NCCL_PATH has " + wanted +
         "; a process can use only one: unset COUPLER_NCCL_PATH, or do not link or preload the "
         "other";
}

std::string open_nccl(Libraries* found) {
  const std::vector<std::string> names = {"libnccl.so.2", kNcclFile};
  if (const Failure two = check_single_nccl(); !two.ok()) return two.message;
  if (std::string other = check_loaded_nccl(names); !other.empty()) return other;
  std::string problem, missing;
  void* const library = open_library(names, &found->nccl_path, &problem);
  if (library == nullptr)
    return "no NCCL (libnccl.so.2) was found: " + problem +
           "; install LibTorch's CUDA wheels or NCCL, or name the folder in COUPLER_NCCL_PATH";
#define COUPLER_FILL(name, result, arguments) \
  fill(library, "nccl" #name, &found->nccl.name, &missing);
  COUPLER_NCCL_FUNCTIONS(COUPLER_FILL)
  if (found->nccl.GetVersion != nullptr) found->nccl.GetVersion(&found->nccl_version);
  if (found->nccl_version < kOldestNccl || !missing.empty())
    return found->nccl_path + " is NCCL " + nccl_text(found->nccl_version) + "; " +
           nccl_text(kOldestNccl) + " or newer is needed" +
           (missing.empty() ? "" : " (it lacks " + missing + ")");
  COUPLER_NCCL_OPTIONAL(COUPLER_FILL)  // a missing function only disables an extension
#undef COUPLER_FILL
  return check_single_nccl().message;
}

Libraries open_all() {
  Libraries found;
  found.problem = open_cuda(&found);
  if (found.problem.empty()) found.problem = count_devices(&found);
  if (found.problem.empty()) found.problem = open_nccl(&found);
  return found;
}

}  // namespace

const Libraries& libraries() {
  static const Libraries* const kLibraries = new Libraries(open_all());  // threads outlive main()
  return *kLibraries;
}

std::string describe(const Libraries& found) {
  return "NCCL " + nccl_text(found.nccl_version) + " (" + found.nccl_path + "), CUDA runtime " +
         cuda_text(found.runtime_version) + " (" + found.cuda_path + "), driver for CUDA " +
         cuda_text(found.driver_version) + ", " + std::to_string(found.devices) +
         (found.devices == 1 ? " device" : " devices");
}

Failure check_single_nccl() {
  const std::vector<std::string> loaded = loaded_libraries(kNcclFile);
  if (loaded.size() < 2) return {};
  return Failure::make(DB_ERR_UNSUPPORTED,
                       "two NCCL libraries are loaded in this process: " + loaded[0] + " and " +
                           loaded[1] +
                           "; a process can use only one. Link or preload only one of them, "
                           "preferably LibTorch's");
}

OnDevice::OnDevice(int device) {
  int current = -1;
  if (cuda().GetDevice(&current) == cudaSuccess && current == device) return;
  before_ = current;
  cuda().SetDevice(device);
}

OnDevice::~OnDevice() {
  if (before_ >= 0) cuda().SetDevice(before_);
}

}  // namespace db::nccl

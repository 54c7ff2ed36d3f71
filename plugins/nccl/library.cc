#include "nccl/library.h"

#include <dlfcn.h>

#include "nccl/loaded.h"

namespace db::nccl {
namespace {

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
  const std::string wanted = explicit_library(names);
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
#undef COUPLER_FILL
  std::string lacking;  // unused: a missing function only disables an extension
#define COUPLER_FILL(name, result, arguments) \
  fill(library, "nccl" #name, &found->nccl.name, &lacking);
  COUPLER_NCCL_OPTIONAL(COUPLER_FILL)
#undef COUPLER_FILL
  if (found->nccl.GetVersion != nullptr) found->nccl.GetVersion(&found->nccl_version);
  if (found->nccl_version < kOldestNccl || !missing.empty())
    return found->nccl_path + " is NCCL " + nccl_text(found->nccl_version) + "; " +
           nccl_text(kOldestNccl) + " or newer is needed" +
           (missing.empty() ? "" : " (it lacks " + missing + ")");
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

}  // namespace db::nccl

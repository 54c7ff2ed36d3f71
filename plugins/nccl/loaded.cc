#include "nccl/loaded.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

namespace db::nccl {
namespace {

std::string real_path(const char* path) {
  char* const resolved = realpath(path, nullptr);
  std::string text = resolved != nullptr ? resolved : path;
  std::free(resolved);
  return text;
}

std::string file_name(std::string_view path) {
  return std::string(path.substr(path.rfind('/') + 1));
}

struct Search {
  const std::string& prefix;
  std::vector<std::string> found;
};

int visit(dl_phdr_info* info, size_t, void* data) {
  auto& search = *static_cast<Search*>(data);
  if (info->dlpi_name == nullptr || file_name(info->dlpi_name).rfind(search.prefix, 0) != 0)
    return 0;
  const std::string path = real_path(info->dlpi_name);
  if (std::find(search.found.begin(), search.found.end(), path) == search.found.end())
    search.found.push_back(path);
  return 0;
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

std::vector<std::string> explicit_folders() {
  std::vector<std::string> folders;
  const std::string given = variable("COUPLER_NCCL_PATH");
  std::string_view list = given;
  while (!list.empty()) {
    const std::string_view folder = list.substr(0, list.find(':'));
    if (!folder.empty()) folders.emplace_back(folder);
    list.remove_prefix(std::min(list.size(), folder.size() + 1));
  }
  return folders;
}

// The folders in which pip puts NVIDIA's wheels.
void add_wheels(const std::string& packages, std::vector<std::string>* folders) {
  for (const char* const below : {"nccl", "cu13", "cuda_runtime"})
    folders->push_back(packages + "/nvidia/" + below + "/lib");
}

std::string join(std::string folder, const std::string& name) {
  folder.append("/").append(name);
  return folder;
}

std::string parent(const std::string& path) {
  const size_t slash = path.rfind('/');
  return path.substr(0, slash == std::string::npos ? 0 : slash);
}

// The LibTorch that launched programs will use, found as in cli/machine/torch_root.cc.
std::string torch_root() {
  std::string root = variable("COUPLER_TORCH_ROOT");
#ifdef COUPLER_NCCL_TORCH_ROOT
  if (!root.empty()) return root;
  const std::string data = variable("XDG_DATA_HOME");
  const std::string fetched = "/coupler/torch-" COUPLER_NCCL_TORCH_WHEEL "/torch";
  for (std::string at :
       {std::string(COUPLER_NCCL_TORCH_ROOT),
        (data.empty() ? variable("HOME") + "/.local/share" : data) + fetched, "/opt" + fetched}) {
    if (access((at + "/lib/libtorch_cpu.so").c_str(), F_OK) == 0) return at;
  }
#endif
  return root;
}

}  // namespace

std::vector<std::string> loaded_libraries(const std::string& prefix) {
  Search search{prefix, {}};
  dl_iterate_phdr(visit, &search);
  return search.found;
}

std::vector<std::string> library_folders() {
  std::vector<std::string> folders = explicit_folders();
  for (const std::string& torch : loaded_libraries("libc10.so")) {
    // …/site-packages/torch/lib/libc10.so
    const std::string packages = parent(parent(parent(torch)));
    add_wheels(packages, &folders);
  }
  // A program without LibTorch, such as the launcher, searches on behalf of those that have it.
  if (const std::string torch = torch_root(); !torch.empty()) add_wheels(parent(torch), &folders);
  return folders;
}

std::string explicit_library(const std::vector<std::string>& names) {
  for (const std::string& folder : explicit_folders()) {
    for (const std::string& name : names) {
      const std::string file = join(folder, name);
      if (access(file.c_str(), F_OK) == 0) return real_path(file.c_str());
    }
  }
  return "";
}

void* open_library(const std::vector<std::string>& names, std::string* path, std::string* problem) {
  void* library = nullptr;
  for (const std::string& name : names) {
    library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (library != nullptr) break;
  }
  for (const std::string& folder : library_folders()) {
    for (const std::string& name : names) {
      if (library != nullptr) break;
      const std::string file = join(folder, name);
      if (access(file.c_str(), F_OK) != 0) continue;
      library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (library != nullptr) break;
      *problem = dlerror();  // do not silently use another one instead
      return nullptr;
    }
  }
  for (const std::string& name : names) {
    if (library != nullptr) break;
    library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr && problem->empty()) *problem = dlerror();
  }
  if (library == nullptr) return nullptr;
  problem->clear();
  *path = path_of(library);
  return library;
}

}  // namespace db::nccl

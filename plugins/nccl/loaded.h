// The shared libraries of this process, and where others may be found. Pure functions over the
// dynamic linker's list; [any-thread].
#pragma once

#include <string>
#include <vector>

namespace db::nccl {

// The real paths of loaded libraries whose file name begins with prefix ("libnccl.so"); each once.
std::vector<std::string> loaded_libraries(const std::string& prefix);

// The folders to search before the system's, in order: those of COUPLER_NCCL_PATH (ignored in
// set-user-ID programs, like LD_LIBRARY_PATH), then those of pip's NVIDIA wheels next to LibTorch
// (the loaded one, then the one that launched programs will load).
std::vector<std::string> library_folders();

// The real path of the first of names in the folders of COUPLER_NCCL_PATH; "" if there is none.
std::string explicit_library(const std::vector<std::string>& names);

// Opens the first available library of names, already loaded or not. *path: its real path. On
// failure the result is NULL and *problem, which was empty, is the reason. A library that exists
// but cannot be opened ends the search.
void* open_library(const std::vector<std::string>& names, std::string* path, std::string* problem);

}  // namespace db::nccl

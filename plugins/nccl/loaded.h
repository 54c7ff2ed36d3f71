// Shared libraries of this process and where others may lie. Pure functions over the dynamic
// linker's list; [any-thread].
#pragma once

#include <string>
#include <vector>

namespace db::nccl {

// The real paths of loaded libraries whose file name begins with prefix ("libnccl.so"); each once.
std::vector<std::string> loaded_libraries(const std::string& prefix);

// The folders to look in before the system's, in order: those of COUPLER_NCCL_PATH (ignored in
// set-user-ID programs, as LD_LIBRARY_PATH is), then those of pip's NVIDIA wheels beside LibTorch
// (the loaded one, then the one that programs to come will load).
std::vector<std::string> library_folders();

// The real path of the first of names in the folders of COUPLER_NCCL_PATH, "" where there is none.
std::string explicit_library(const std::vector<std::string>& names);

// Opens the first that is to be had of names, already loaded or not. *path: its real path; empty
// result: *problem, which was empty, says why. One that is there and cannot be opened ends the
// search.
void* open_library(const std::vector<std::string>& names, std::string* path, std::string* problem);

}  // namespace db::nccl

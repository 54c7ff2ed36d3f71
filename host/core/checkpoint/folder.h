// Folders of checkpoints as a reader sees them:
//
//   DIR/checkpoint_{n}/          committed: manifest.json and the files it lists; n counts from 0
//   DIR/.checkpoint_{n}.{save}.partial/  being written, only by the save with that identity
//   DIR/.checkpoint_{n}.{save}.removed/  being removed
//   DIR/.checkpoint.lock         held by the job that writes here
//
// A checkpoint is valid if its manifest can be read, its files exist with their sizes, and its
// pieces carry the identity of its save; verify() also compares hashes. Nothing here changes a file
// or takes a lock, so a running job may write and remove meanwhile. Plain functions, any thread,
// any number of processes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"

namespace coupler::checkpoint {

// Which other program wrote the folder and how that is known, "" if unknown: "an Accelerate
// checkpoint (model.safetensors next to optimizer.bin)". Looks at names only.
std::string foreign_layout(const std::string& folder);

// The hint for an error about such a folder.
inline constexpr const char* kForeignHint =
    "'coupler checkpoint convert' turns its weights into a .safetensors file that "
    "coupler::SafeTensors reads; the rest of another program's checkpoint cannot be read";

// An entry named checkpoint_{n}: with its manifest if it is valid, else with the reason it is not.
struct Entry {
  int64_t number = 0;
  std::string path;
  std::optional<Manifest> manifest;
  std::string reason;
};

// Sorted by number. Throws Error(kIo) if the folder does not exist or cannot be read.
std::vector<Entry> list(const std::string& folder);

struct Newest {
  std::optional<Entry> entry;  // none: there is no valid one
  std::vector<Entry> skipped;  // invalid newer ones, newest first
};

// Throws like list().
Newest newest(const std::string& folder);

// The manifest of one checkpoint, whatever its folder is called, after checking that all its files
// exist with their sizes. Throws Error(kIo) that says what the path is instead.
Manifest open_checkpoint(const std::string& path);

// "" or the reason why a file is not as its manifest lists it, phrased to follow the file's path:
// it is missing, has another size or is a piece of another save. Compares no contents.
std::string file_problem(const std::string& folder, const Manifest& manifest,
                         const ManifestFile& file, bool follow_link = true);

struct Difference {
  std::string file;
  std::string reason;
};

// Reads files of a checkpoint, all or those named, and compares their hashes; several processes can
// share the work. Returns the files that are not as they were written. Throws Error(kIo) if the
// manifest itself cannot be read, Error(kInvalidArgument) for a name that is not in it.
std::vector<Difference> verify(const std::string& path);
std::vector<Difference> verify(const std::string& path, const std::vector<std::string>& files);

// Throws Error(kIo) "<path>: <problem>", whose hint is to use another checkpoint. path: the
// checkpoint's folder or the file concerned.
[[noreturn]] void refuse_checkpoint(const std::string& path, const std::string& problem);

}  // namespace coupler::checkpoint

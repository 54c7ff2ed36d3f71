// Folders of checkpoints as a reader sees them:
//
//   DIR/checkpoint_{n}/          committed: manifest.json and the files it lists; n counts from 0
//   DIR/.checkpoint_{n}.{save}.partial/  being written, by the save of that identity alone
//   DIR/.checkpoint_{n}.{save}.removed/  being removed
//   DIR/.checkpoint.lock         held by the job that writes here
//
// Valid is a checkpoint whose manifest can be read and whose files are there with their sizes, its
// pieces with the identity of its save; verify() also compares their hashes. Nothing is changed
// here and no lock is taken, so a running job may write and remove meanwhile. Plain functions, any
// thread, any number of processes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"

namespace coupler::checkpoint {

// What is called checkpoint_{n}: valid with its manifest, else with the reason why it is not.
struct Entry {
  int64_t number = 0;
  std::string path;
  std::optional<Manifest> manifest;
  std::string reason;
};

// By number. Throws Error(kIo) where the folder is not there or cannot be read.
std::vector<Entry> list(const std::string& folder);

struct Skipped {
  std::string path;
  std::string reason;
};

struct Newest {
  std::optional<Entry> entry;    // none: there is no valid one
  std::vector<Skipped> skipped;  // those that are newer, the newest first
};

// Throws as list().
Newest newest(const std::string& folder);

// The manifest of one checkpoint, whatever its folder is called, all its files being there with
// their sizes. Throws Error(kIo) that says what the path is instead.
Manifest open_checkpoint(const std::string& path);

struct Difference {
  std::string file;
  std::string reason;
};

// Reads files of a checkpoint and compares their hashes: all, or those named (several processes
// share the work so). Returns those that are not as they were written. Throws Error(kIo) where the
// manifest itself cannot be read, Error(kInvalidArgument) for a name that is not in it.
std::vector<Difference> verify(const std::string& path);
std::vector<Difference> verify(const std::string& path, const std::vector<std::string>& files);

}  // namespace coupler::checkpoint

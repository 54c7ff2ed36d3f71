// Guarded mappings: files that models use in place. If another process truncates one meanwhile, the
// kernel sends SIGBUS; for these files the process then exits with an error that names the file.
// The handler is installed with the first guard; other faults go to the previous handler.
// [any-thread]
#pragma once

#include <cstddef>
#include <memory>

#include "base/mapped_file.h"

namespace coupler {

// Guards the file's mapping while any of the results for it is alive; they keep the file mapped. At
// most 4,096 files are guarded at a time; further ones are not.
std::shared_ptr<const void> guard_mapping(const std::shared_ptr<const MappedFile>& file);

// Brings a range of a mapping into memory, so that later reads do not wait for the disk. Throws
// Error(kIo) naming the file if it has become shorter or the disk fails.
void populate(const MappedFile& file, size_t begin, size_t bytes);

// Asks the kernel to read a range from the disk, and returns at once.
void advise_in(const MappedFile& file, size_t begin, size_t bytes);

// Removes a range from this process's memory, with neighboring pages that may have been read with
// it; the page cache may keep them. Neighboring pages still in use return from there on access.
void drop(const MappedFile& file, size_t begin, size_t bytes);

}  // namespace coupler

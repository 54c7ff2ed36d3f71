// Guarded mappings: files that are computed with where they are mapped. Where another process
// shortens one meanwhile, the kernel sends SIGBUS; for these files it ends the process with an
// error that names the file instead. Installed with the first of them; other faults go where they
// went. [any-thread]
#pragma once

#include <cstddef>
#include <memory>

#include "io/mapped_file.h"

namespace coupler {

// Guards the file's mapping while one of the results for it lives; they keep the file mapped. Of
// more than 4,096 files at a time the rest is not guarded.
std::shared_ptr<const void> guard_mapping(const std::shared_ptr<const MappedFile>& file);

// Brings a part of a mapping into memory: what is read of it afterwards waits for no disk. Throws
// Error(kIo) naming the file where it is shorter by now, or the disk fails.
void populate(const MappedFile& file, size_t begin, size_t bytes);

// Asks the kernel to read a part from the disk, and returns.
void advise_in(const MappedFile& file, size_t begin, size_t bytes);

// Takes a part out of this process's memory, with what bringing it in may have brought beside it;
// the page cache may keep it. What is still used beside it comes back by itself, from there.
void drop(const MappedFile& file, size_t begin, size_t bytes);

}  // namespace coupler

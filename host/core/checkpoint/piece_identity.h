// Whether a file is a piece of the save whose manifest lists it. Every piece carries the identity
// of its save in its "__metadata__" (kSaveKey), so pieces of two saves never pass for one
// checkpoint, even if their sizes are equal. Plain functions, any thread.
#pragma once

#include <string>

#include "checkpoint/manifest.h"
#include "formats/safetensors_header.h"

namespace coupler::checkpoint {

// "" or the reason why the file is not a piece of the manifest's save, phrased to follow the file's
// path. "" for files that are not pieces: they carry no identity. Reads the file's header only.
std::string piece_problem(const std::string& folder, const Manifest& manifest,
                          const ManifestFile& file);

// The same for metadata that has been read already.
std::string piece_problem(const safetensors::Metadata& metadata, const Manifest& manifest,
                          const ManifestFile& file);

}  // namespace coupler::checkpoint

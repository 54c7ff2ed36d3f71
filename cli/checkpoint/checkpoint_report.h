// Text output of the checkpoint command. Pure functions, except that tensors_text reads a file.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/folder.h"
#include "checkpoint/manifest.h"
#include "formats/safetensors_header.h"

namespace coupler::cli {

uint64_t total_bytes(const checkpoint::Manifest& manifest);

// "1.5 KiB in 2 files".
std::string size_text(const checkpoint::Manifest& manifest);

// "[2, 3]"; "[]" for a scalar.
std::string shape_text(const safetensors::TensorInfo& tensor);

// Tables of the manifest, its state ("" without state) and its files; each ends in a newline.
std::string manifest_text(const checkpoint::Manifest& manifest, const std::string& path);
std::string state_text(const checkpoint::Manifest& manifest);
std::string files_text(const checkpoint::Manifest& manifest);

// The tensors of one safetensors file. Throws Error(kIo) if it is not one.
std::string tensors_text(const std::string& path);

// JSON output of the checkpoint command. Pure functions, except that tensors_json reads a file.

using Json = nlohmann::ordered_json;

// An array with one object per checkpoint; an invalid one has "reason" in place of its contents.
Json checkpoints_json(const std::vector<checkpoint::Entry>& entries);
// Everything in the manifest.
Json manifest_json(const checkpoint::Manifest& manifest, const std::string& path);
Json differences_json(const std::string& path,
                      const std::vector<checkpoint::Difference>& differences);

// The tensors of one safetensors file. Throws Error(kIo) if it is not one.
Json tensors_json(const std::string& path);

}  // namespace coupler::cli

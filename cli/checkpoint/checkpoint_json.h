// What the checkpoint command says with --json. Pure functions but tensors_of, which reads a file.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/folder.h"

namespace coupler::cli {

using Json = nlohmann::ordered_json;

// An array, an object a checkpoint; one that is not valid has "reason" in place of what it holds.
Json checkpoints_json(const std::vector<checkpoint::Entry>& entries);
// Everything in the manifest.
Json manifest_json(const checkpoint::Manifest& manifest, const std::string& path);
Json differences_json(const std::string& path,
                      const std::vector<checkpoint::Difference>& differences);

// The tensors of one safetensors file. Throws Error(kIo) where it is none.
Json tensors_json(const std::string& path);

}  // namespace coupler::cli

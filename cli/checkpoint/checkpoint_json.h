// JSON output of the checkpoint command. Pure functions, except that tensors_json reads a file.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/folder.h"

namespace coupler::cli {

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

// How the checkpoint command words what a manifest and a tensor's header say. Pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "checkpoint/manifest.h"
#include "io/safetensors_header.h"

namespace coupler::cli {

uint64_t total_bytes(const checkpoint::Manifest& manifest);

// "1.5 KiB in 2 files".
std::string size_text(const checkpoint::Manifest& manifest);

// "[2, 3]"; "[]" for a number alone.
std::string shape_text(const safetensors::TensorInfo& tensor);

// Tables of a manifest in words, of its state and of its files; they end with a line break.
std::string manifest_text(const checkpoint::Manifest& manifest, const std::string& path);
std::string state_text(const checkpoint::Manifest& manifest);
std::string files_text(const checkpoint::Manifest& manifest);

// The tensors of one safetensors file. Throws Error(kIo) where it is none.
std::string tensors_text(const std::string& path);

}  // namespace coupler::cli

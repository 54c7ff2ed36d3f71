// What the files of a checkpoint and the entries in them are called. Pure functions, any thread;
// sees no LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"

namespace coupler::checkpoint {

inline constexpr const char* kExtension = ".safetensors";

// Accelerate's way of counting: model, model_1, model_2.
std::string numbered(const std::string& kind, size_t index);

// The pieces of one kind: "model.safetensors", or every "model-…" that a rank wrote: a hook's
// model-average.safetensors is none.
std::vector<std::string> files_of(const Manifest& manifest, const std::string& base);

// How an entry of a file is called: the tensor's name, with "[begin:end]" where it is a part of it.
std::string part_name(const std::string& tensor, int64_t begin, int64_t end);

struct EntryRange {
  std::string name;
  int64_t begin = 0, end = -1;  // -1: it is the whole tensor
};
EntryRange read_entry_name(const std::string& entry);

}  // namespace coupler::checkpoint

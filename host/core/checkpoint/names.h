// The names of the entries in a folder of checkpoints. Pure functions, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/manifest.h"
#include "sharding/division.h"

namespace coupler::checkpoint {

inline constexpr const char* kLockName = ".checkpoint.lock";

enum class NameKind { kCommitted, kPartial, kRemoved };

struct Name {
  NameKind kind;
  int64_t number;
  std::string save = {};  // identity of the save; "": committed, or written by an old version
};

// Shared by all pieces of one save and unique to it: 32 lower-case hexadecimal digits.
std::string new_save_identity();
bool is_save_identity(std::string_view text);

std::string name_of(const Name& name);

// nullopt for names of any other form, such as leading zeros or more than 18 digits.
std::optional<Name> read_name(std::string_view text);

// The names of a checkpoint's files and of the entries in them.

inline constexpr const char* kExtension = ".safetensors";

// Numbered as Accelerate does: model, model_1, model_2.
std::string numbered(const std::string& kind, size_t index);

// The pieces of one kind: "model.safetensors", or every "model-…" that a rank wrote; a hook's
// model-average.safetensors is not one.
std::vector<std::string> files_of(const Manifest& manifest, const std::string& base);

// The name of an entry in a file: the tensor's name, with "[begin:end]" if it is only some of its
// elements. Of a divided tensor, begin and end count the elements of one rank's part, and the name
// says which: "[begin:end|run*ranks+rank]" (see Division).
std::string part_name(const std::string& tensor, int64_t begin, int64_t end,
                      const sharding::Division& division = {});

struct EntryRange {
  std::string name;
  int64_t begin = 0, end = -1;  // -1: the whole tensor
  sharding::Division division = {};
};
EntryRange read_entry_name(const std::string& entry);

}  // namespace coupler::checkpoint

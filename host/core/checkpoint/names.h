// The names of the entries in a folder of checkpoints. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

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

}  // namespace coupler::checkpoint

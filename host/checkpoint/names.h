// What the entries of a folder of checkpoints are called. Pure functions, any thread.
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
  std::string save = {};  // identity of the save; "": committed, or of a Coupler that had none
};

// What all pieces of one save share and no other save has: 32 lower-case hexadecimal digits.
std::string new_save_identity();
bool is_save_identity(std::string_view text);

std::string name_of(const Name& name);

// Nothing for names of any other form: leading zeros, say, or more than 18 digits.
std::optional<Name> read_name(std::string_view text);

}  // namespace coupler::checkpoint

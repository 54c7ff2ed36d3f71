// Options: the user's settings, checked against a plugin's list of options and defaults.
// A plain value once parsed; [any-thread].
#pragma once

#include <coupler/distributed_backend.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "common/error.h"

namespace db {

// Entries for a plugin's table of defaults.
constexpr db_option i64_option(const char* key, int64_t value, const char* description) {
  return {sizeof(db_option), key, DB_OPTION_I64, 0, value, 0.0, nullptr, description};
}
constexpr db_option bool_option(const char* key, bool value, const char* description) {
  return {sizeof(db_option), key, DB_OPTION_BOOL, value ? 1 : 0, 0, 0.0, nullptr, description};
}
constexpr db_option string_option(const char* key, const char* value, const char* description) {
  return {sizeof(db_option), key, DB_OPTION_STRING, 0, 0, 0.0, value, description};
}

// The array of pointers in which the ABI takes structs; all has static storage.
template <class T, size_t kCount>
constexpr std::array<const T*, kCount> pointers_to(const T (&all)[kCount]) {
  std::array<const T*, kCount> pointers{};
  for (size_t i = 0; i < kCount; ++i) pointers[i] = &all[i];
  return pointers;
}

template <const auto& kStructs>
inline constexpr auto kPointersTo = pointers_to(kStructs);

// DistributedBackend.default_options of a plugin with this table.
template <const auto& kOptions>
const db_option* const* default_options(uint64_t* count) {
  *count = kPointersTo<kOptions>.size();
  return kPointersTo<kOptions>.data();
}

class Options {
 public:
  // Every default, overlaid with the given options. DB_ERR_UNKNOWN_OPTION names the key, the
  // nearest valid key and all valid keys; DB_ERR_INVALID_ARGUMENT reports a wrong type or a
  // duplicate key.
  static Failure parse(const db_option* const* defaults, uint64_t default_count,
                       const db_option* const* given, uint64_t given_count, Options* options);

  // The key must be one of the defaults and have that type; otherwise the plugin has a bug and
  // std::terminate is called.
  int64_t i64(std::string_view key) const;
  bool boolean(std::string_view key) const;
  const std::string& string(std::string_view key) const;
  // Whether the user set it, even to the default value. The key must be one of the defaults.
  bool given(std::string_view key) const;

 private:
  struct Value {
    std::string key;
    db_option_type type;
    int64_t i64;
    bool boolean;
    std::string string;
    bool given;
  };
  const Value& find(std::string_view key, db_option_type type) const;
  std::vector<Value> values_;
};

// What every create does first: sets *result to NULL, checks params and reads the options.
Failure read_params(const db_option* const* defaults, uint64_t default_count,
                    const db_communicator_params* params, db_communicator** result,
                    Options* options);

// Values of options that need more than a type check: one of several words, a number in a range,
// the name of a data type. A wrong value is DB_ERR_INVALID_ARGUMENT with the option, its value and
// the valid values. Pure functions; [any-thread].

// *index: which of the words the string option is.
Failure read_word(const Options& options, std::string_view key,
                  std::initializer_list<const char*> words, size_t* index);

// An integer option between least and most.
Failure read_number(const Options& options, std::string_view key, int64_t least, int64_t most,
                    int64_t* value);

// A floating-point type by name: bf16, f16 (fp16), f32 (fp32), f64 (fp64); 0 for an empty string.
Failure read_dtype(const Options& options, std::string_view key, db_dtype* dtype);

}  // namespace db

#include "common/option_values.h"

#include <string_view>

namespace db {

Failure read_word(const Options& options, const char* key, std::initializer_list<const char*> words,
                  size_t* index) {
  const std::string& value = options.string(key);
  std::string valid;
  size_t i = 0;
  for (const char* const word : words) {
    if (value == word) {
      *index = i;
      return {};
    }
    valid += (i++ == 0 ? "" : ", ") + std::string(word);
  }
  return Failure::make(DB_ERR_INVALID_ARGUMENT,
                       "option '" + std::string(key) + "' is '" + value + "'; valid: " + valid);
}

Failure read_number(const Options& options, const char* key, int64_t least, int64_t most,
                    int64_t* value) {
  *value = options.i64(key);
  if (*value >= least && *value <= most) return {};
  std::string valid = std::to_string(least);
  valid += most == INT64_MAX ? " or more" : " to " + std::to_string(most);
  return Failure::make(DB_ERR_INVALID_ARGUMENT, "option '" + std::string(key) + "' is " +
                                                    std::to_string(*value) + "; valid: " + valid);
}

Failure read_dtype(const Options& options, const char* key, db_dtype* dtype) {
  // bfp16 is DeepSpeed's name for bf16.
  static constexpr struct {
    std::string_view name;
    db_dtype dtype;
  } kTypes[] = {{"", 0},          {"bf16", DB_BF16}, {"bfp16", DB_BF16},
                {"f16", DB_F16},  {"fp16", DB_F16},  {"f32", DB_F32},
                {"fp32", DB_F32}, {"f64", DB_F64},   {"fp64", DB_F64}};
  const std::string& value = options.string(key);
  for (const auto& type : kTypes) {
    if (value != type.name) continue;
    *dtype = type.dtype;
    return {};
  }
  return Failure::make(DB_ERR_INVALID_ARGUMENT,
                       "option '" + std::string(key) + "' is '" + value +
                           "'; valid: bf16, f16 (or fp16), f32 (or fp32), f64 (or fp64), or empty "
                           "for the parameter's own type");
}

}  // namespace db

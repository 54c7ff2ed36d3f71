#include "common/options.h"

#include <algorithm>
#include <exception>
#include <numeric>

namespace db {
namespace {

const char* type_name(db_option_type type) {
  switch (type) {
    case DB_OPTION_STRING:
      return "a string";
    case DB_OPTION_I64:
      return "an integer";
    case DB_OPTION_F64:
      return "a number";
    case DB_OPTION_BOOL:
      return "true or false";
    default:
      return "of an unknown type";
  }
}

// Edit distance between two keys.
size_t distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

}  // namespace

Failure Options::parse(const db_option* const* defaults, uint64_t default_count,
                       const db_option* const* given, uint64_t given_count, Options* options) {
  options->values_.clear();
  for (uint64_t i = 0; i < default_count; ++i) {
    const db_option& o = *defaults[i];
    options->values_.push_back(
        {o.key, o.type, o.i64, o.boolean != 0, o.string != nullptr ? o.string : "", false});
  }
  for (uint64_t i = 0; i < given_count; ++i) {
    const db_option* const o = given[i];
    if (o == nullptr || !DB_HAS(o, db_option, string) || o->key == nullptr)
      return Failure::invalid("option number " + std::to_string(i) +
                              " is NULL, lacks a key or has too small a struct_size");
    const std::string key = o->key;
    auto& values = options->values_;
    const auto value =
        std::find_if(values.begin(), values.end(), [&](const Value& v) { return v.key == key; });
    if (value == values.end()) {
      if (values.empty())
        return Failure::make(DB_ERR_UNKNOWN_OPTION,
                             "unknown option '" + key + "': this backend has no options");
      const auto nearest =
          std::min_element(values.begin(), values.end(), [&](const Value& a, const Value& b) {
            return distance(a.key, key) < distance(b.key, key);
          });
      std::string text =
          "unknown option '" + key + "', did you mean '" + nearest->key + "'? Valid options:";
      for (const Value& v : values) text += (&v == values.data() ? " " : ", ") + v.key;
      return Failure::make(DB_ERR_UNKNOWN_OPTION, text);
    }
    if (value->given) return Failure::invalid("option '" + key + "' is given twice");
    value->given = true;
    if (o->type != value->type)
      return Failure::invalid("option '" + key + "' must be " + type_name(value->type) +
                              ", but is " + type_name(o->type));
    value->i64 = o->i64;
    value->boolean = o->boolean != 0;
    value->string = o->string != nullptr ? o->string : "";
  }
  return {};
}

const Options::Value& Options::find(std::string_view key, db_option_type type) const {
  for (const Value& value : values_)
    if (value.key == key && value.type == type) return value;
  std::terminate();
}

int64_t Options::i64(std::string_view key) const { return find(key, DB_OPTION_I64).i64; }
bool Options::boolean(std::string_view key) const { return find(key, DB_OPTION_BOOL).boolean; }
const std::string& Options::string(std::string_view key) const {
  return find(key, DB_OPTION_STRING).string;
}

bool Options::given(std::string_view key) const {
  for (const Value& value : values_)
    if (value.key == key) return value.given;
  std::terminate();
}

Failure read_params(const db_option* const* defaults, uint64_t default_count,
                    const db_communicator_params* params, db_communicator** result,
                    Options* options) {
  if (result != nullptr) *result = nullptr;
  if (params == nullptr || result == nullptr || !DB_HAS(params, db_communicator_params, base_count))
    return Failure::invalid("create: params or result is NULL, or params.struct_size is too small");
  if (params->size < 1 || params->rank < 0 || params->rank >= params->size)
    return Failure::invalid("create: rank " + std::to_string(params->rank) + " of " +
                            std::to_string(params->size) +
                            " is out of range; ranks go from 0 to size - 1");
  if (params->default_timeout_ns <= 0)
    return Failure::invalid("create: default_timeout_ns must be positive");
  if (params->size > 1 && params->store == nullptr && params->base_count == 0)
    return Failure::invalid("create: store is NULL");
  return Options::parse(defaults, default_count, params->options, params->option_count, options);
}

Failure read_word(const Options& options, std::string_view key,
                  std::initializer_list<const char*> words, size_t* index) {
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
  return Failure::invalid("option '" + std::string(key) + "' is '" + value + "'; valid: " + valid);
}

Failure read_number(const Options& options, std::string_view key, int64_t least, int64_t most,
                    int64_t* value) {
  *value = options.i64(key);
  if (*value >= least && *value <= most) return {};
  std::string valid = std::to_string(least);
  valid += most == INT64_MAX ? " or more" : " to " + std::to_string(most);
  return Failure::invalid("option '" + std::string(key) + "' is " + std::to_string(*value) +
                          "; valid: " + valid);
}

Failure read_dtype(const Options& options, std::string_view key, db_dtype* dtype) {
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
  return Failure::invalid("option '" + std::string(key) + "' is '" + value +
                          "'; valid: bf16, f16 (or fp16), f32 (or fp32), f64 (or fp64), or empty "
                          "for the parameter's own type");
}

}  // namespace db

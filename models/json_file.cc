#include "json_file.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <utility>

#include "base/text.h"

namespace coupler {
namespace {

constexpr const char* kAsWritten = "use the file as written by transformers' save_pretrained";

bool is_string(const nlohmann::json& value) { return value.is_string(); }
bool is_integer(const nlohmann::json& value) { return value.is_number_integer(); }

}  // namespace

nlohmann::json read_json_file(const std::string& path, const std::string& hint) {
  std::ifstream in(path, std::ios::binary);
  if (!in)
    throw Error(ErrorCode::kIo, fmt::format("{} cannot be read", path),
                {.subject = path, .hint = hint});
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::exception& problem) {
    throw Error(ErrorCode::kIo,
                fmt::format("{} is not valid JSON: {}", path, for_message(problem.what())),
                {.subject = path, .hint = kAsWritten});
  }
}

JsonObject::JsonObject(const nlohmann::json& value, std::string where)
    : value_(&value), where_(std::move(where)) {
  if (!value.is_object())
    throw Error(ErrorCode::kInvalidArgument, fmt::format("{} is not a JSON object", where_),
                {.subject = where_, .hint = kAsWritten});
}

const nlohmann::json* JsonObject::find(const char* key) const {
  const auto found = value_->find(key);
  return found == value_->end() || found->is_null() ? nullptr : &*found;
}

void JsonObject::refuse(const char* key, const std::string& problem,
                        const std::string& hint) const {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: '{}' {}", where_, key, problem),
              {.subject = key, .hint = hint});
}

void JsonObject::mistyped(const char* key, const char* wanted) const {
  const nlohmann::json* const value = find(key);
  refuse(key,
         value == nullptr ? "is missing"
                          : fmt::format("must be {}, not {}", wanted, for_message(value->dump())),
         kAsWritten);
}

const nlohmann::json& JsonObject::raw(const char* key) const {
  const nlohmann::json* const value = find(key);
  if (value == nullptr) mistyped(key, "present");
  return *value;
}

template <class T>
T JsonObject::get(const char* key, const std::optional<T>& otherwise, Test fits,
                  const char* wanted) const {
  const nlohmann::json* const value = find(key);
  if (value == nullptr && otherwise) return *otherwise;
  if (value == nullptr || !fits(*value)) mistyped(key, wanted);
  return value->get<T>();
}

template <class T>
std::vector<T> JsonObject::list(const char* key, Test fits, const char* wanted) const {
  const nlohmann::json* const value = find(key);
  if (value == nullptr) return {};
  if (!value->is_array() || !std::all_of(value->begin(), value->end(), fits)) mistyped(key, wanted);
  return value->get<std::vector<T>>();
}

std::string JsonObject::text(const char* key, const std::optional<std::string>& otherwise) const {
  return get(key, otherwise, is_string, "a string");
}

int64_t JsonObject::integer(const char* key, const std::optional<int64_t>& otherwise) const {
  return get(key, otherwise, is_integer, "an integer");
}

int64_t JsonObject::size(const char* key, const std::optional<int64_t>& otherwise) const {
  const auto is_size = [](const nlohmann::json& value) {
    constexpr int64_t kMost = int64_t{1} << 40;
    return is_integer(value) && value.get<int64_t>() >= 1 && value.get<int64_t>() <= kMost;
  };
  return get(key, otherwise, is_size, "a positive integer");
}

double JsonObject::number(const char* key, const std::optional<double>& otherwise) const {
  const auto is_number = [](const nlohmann::json& value) { return value.is_number(); };
  return get(key, otherwise, is_number, "a number");
}

bool JsonObject::flag(const char* key, bool otherwise) const {
  const auto is_flag = [](const nlohmann::json& value) { return value.is_boolean(); };
  return get<bool>(key, otherwise, is_flag, "true or false");
}

std::vector<int64_t> JsonObject::integers(const char* key) const {
  if (has(key) && !raw(key).is_array()) return {integer(key)};
  return list<int64_t>(key, is_integer, "an integer or a list of integers");
}

std::vector<std::string> JsonObject::texts(const char* key) const {
  return list<std::string>(key, is_string, "a list of strings");
}

JsonObject JsonObject::object(const char* key) const {
  return {raw(key), fmt::format("{}: {}", where_, key)};
}

std::optional<JsonObject> JsonObject::maybe_object(const char* key) const {
  if (!has(key)) return std::nullopt;
  return object(key);
}

std::vector<JsonObject> JsonObject::objects(const char* key) const {
  const nlohmann::json* const value = find(key);
  if (value == nullptr) return {};
  if (!value->is_array()) mistyped(key, "a list");
  std::vector<JsonObject> result;
  for (const nlohmann::json& element : *value)
    result.emplace_back(element, fmt::format("{}: {}", where_, key));
  return result;
}

}  // namespace coupler

#include "json_file.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <fstream>
#include <iterator>
#include <utility>

#include "base/text.h"

namespace coupler {
namespace {

constexpr const char* kAsWritten = "use the file as written by transformers' save_pretrained";

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

std::string JsonObject::text(const char* key) const {
  const nlohmann::json* const value = find(key);
  if (value == nullptr || !value->is_string()) mistyped(key, "a string");
  return value->get<std::string>();
}

std::string JsonObject::text(const char* key, const std::string& otherwise) const {
  return has(key) ? text(key) : otherwise;
}

int64_t JsonObject::integer(const char* key) const {
  const nlohmann::json* const value = find(key);
  if (value == nullptr || !value->is_number_integer()) mistyped(key, "an integer");
  return value->get<int64_t>();
}

int64_t JsonObject::integer(const char* key, int64_t otherwise) const {
  return has(key) ? integer(key) : otherwise;
}

int64_t JsonObject::size(const char* key) const {
  const nlohmann::json* const value = find(key);
  constexpr int64_t kMost = int64_t{1} << 40;
  if (value == nullptr || !value->is_number_integer() || value->get<int64_t>() < 1 ||
      value->get<int64_t>() > kMost)
    mistyped(key, "a positive integer");
  return value->get<int64_t>();
}

int64_t JsonObject::size(const char* key, int64_t otherwise) const {
  return has(key) ? size(key) : otherwise;
}

double JsonObject::number(const char* key) const {
  const nlohmann::json* const value = find(key);
  if (value == nullptr || !value->is_number()) mistyped(key, "a number");
  return value->get<double>();
}

double JsonObject::number(const char* key, double otherwise) const {
  return has(key) ? number(key) : otherwise;
}

bool JsonObject::flag(const char* key, bool otherwise) const {
  const nlohmann::json* const value = find(key);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) mistyped(key, "true or false");
  return value->get<bool>();
}

std::vector<int64_t> JsonObject::integers(const char* key) const {
  const nlohmann::json* const value = find(key);
  if (value == nullptr) return {};
  if (!value->is_array()) return {integer(key)};
  std::vector<int64_t> result;
  for (const nlohmann::json& element : *value) {
    if (!element.is_number_integer()) mistyped(key, "an integer or a list of integers");
    result.push_back(element.get<int64_t>());
  }
  return result;
}

std::vector<std::string> JsonObject::texts(const char* key) const {
  const nlohmann::json* const value = find(key);
  if (value == nullptr) return {};
  if (!value->is_array()) mistyped(key, "a list of strings");
  std::vector<std::string> result;
  for (const nlohmann::json& element : *value) {
    if (!element.is_string()) mistyped(key, "a list of strings");
    result.push_back(element.get<std::string>());
  }
  return result;
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

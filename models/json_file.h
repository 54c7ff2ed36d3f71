// JSON files that transformers and tokenizers write, read key by key with messages that name file
// and key. Immutable, any thread; a JsonObject must not outlive the document that it is part of.
// Sees no LibTorch.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace coupler {

// The document of a file. Throws Error(kIo) where it cannot be read or is no JSON; hint: what to do
// about a file that is missing.
nlohmann::json read_json_file(const std::string& path, const std::string& hint);

// A null counts as missing in all of this. Everything throws Error(kInvalidArgument) naming file
// and key where a value is of another type, and where one without a default is missing.
class JsonObject {
 public:
  // where: the file, and below what key; for messages.
  JsonObject(const nlohmann::json& value, std::string where);

  bool has(const char* key) const { return find(key) != nullptr; }
  std::string text(const char* key) const;
  std::string text(const char* key, const std::string& otherwise) const;
  int64_t integer(const char* key) const;
  int64_t integer(const char* key, int64_t otherwise) const;
  // A whole number of at least 1.
  int64_t size(const char* key) const;
  int64_t size(const char* key, int64_t otherwise) const;
  double number(const char* key) const;
  double number(const char* key, double otherwise) const;
  bool flag(const char* key, bool otherwise) const;
  // A number, or a list of some; none where it is missing.
  std::vector<int64_t> integers(const char* key) const;
  std::vector<std::string> texts(const char* key) const;
  JsonObject object(const char* key) const;
  std::optional<JsonObject> maybe_object(const char* key) const;
  std::vector<JsonObject> objects(const char* key) const;
  // As it is.
  const nlohmann::json& raw(const char* key) const;

  const nlohmann::json& json() const { return *value_; }
  const std::string& where() const { return where_; }
  // Throws: "WHERE: 'KEY' PROBLEM".
  [[noreturn]] void refuse(const char* key, const std::string& problem,
                           const std::string& hint) const;

 private:
  const nlohmann::json* find(const char* key) const;
  [[noreturn]] void mistyped(const char* key, const char* wanted) const;

  const nlohmann::json* value_;
  std::string where_;
};

}  // namespace coupler

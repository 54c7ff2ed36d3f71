// Reads JSON files of transformers and tokenizers key by key; errors name the file and the key.
// Immutable; safe to use from any thread. A JsonObject must not outlive the document that it is
// part of. Does not depend on LibTorch.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace coupler {

// Parses a file. Throws Error(kIo) if it cannot be read or is not JSON. hint: what to do if the
// file is missing.
nlohmann::json read_json_file(const std::string& path, const std::string& hint);

// A null counts as missing. Getters throw Error(kInvalidArgument) naming the file and the key if a
// value has the wrong type, or is missing and there is no `otherwise`.
class JsonObject {
 public:
  // where: the file and the path of keys, for messages.
  JsonObject(const nlohmann::json& value, std::string where);

  bool has(const char* key) const { return find(key) != nullptr; }
  std::string text(const char* key, const std::optional<std::string>& otherwise = {}) const;
  int64_t integer(const char* key, const std::optional<int64_t>& otherwise = {}) const;
  // An integer of at least 1.
  int64_t size(const char* key, const std::optional<int64_t>& otherwise = {}) const;
  double number(const char* key, const std::optional<double>& otherwise = {}) const;
  bool flag(const char* key, bool otherwise) const;
  // An integer or a list of integers; empty if missing.
  std::vector<int64_t> integers(const char* key) const;
  std::vector<std::string> texts(const char* key) const;
  JsonObject object(const char* key) const;
  std::optional<JsonObject> maybe_object(const char* key) const;
  std::vector<JsonObject> objects(const char* key) const;
  // The value, of any type.
  const nlohmann::json& raw(const char* key) const;

  const nlohmann::json& json() const { return *value_; }
  const std::string& where() const { return where_; }
  // Throws: "WHERE: 'KEY' PROBLEM".
  [[noreturn]] void refuse(const char* key, const std::string& problem,
                           const std::string& hint) const;

 private:
  using Test = bool (*)(const nlohmann::json& value);
  const nlohmann::json* find(const char* key) const;
  template <class T>
  T get(const char* key, const std::optional<T>& otherwise, Test fits, const char* wanted) const;
  template <class T>
  std::vector<T> list(const char* key, Test fits, const char* wanted) const;
  [[noreturn]] void mistyped(const char* key, const char* wanted) const;

  const nlohmann::json* value_;
  std::string where_;
};

}  // namespace coupler

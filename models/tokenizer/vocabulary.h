// Vocabulary: a model's tokens by text and by id; WordModel: turns words into tokens. Immutable;
// safe to use from any thread. Do not depend on LibTorch.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "json_file.h"

namespace coupler {

class Vocabulary {
 public:
  // "vocab" of tokenizer.json's model: token to id. Throws Error(kInvalidArgument) for an id that
  // is not a number or that two tokens share.
  explicit Vocabulary(const JsonObject& model);

  std::optional<int64_t> id(std::string_view text) const;
  // Null if no token has the id.
  const std::string* text(int64_t id) const;
  int64_t size() const { return static_cast<int64_t>(ids_.size()); }

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  std::unordered_map<std::string, int64_t, Hash, std::equal_to<>> ids_;
  std::unordered_map<int64_t, const std::string*> texts_;
};

class WordModel {
 public:
  virtual ~WordModel() = default;
  // Appends the tokens of a word.
  virtual void tokenize(const std::string& word, std::vector<int64_t>& ids) const = 0;
  virtual const Vocabulary& vocabulary() const = 0;
};

std::unique_ptr<WordModel> make_bpe(const JsonObject& model);
std::unique_ptr<WordModel> make_word_piece(const JsonObject& model);
// By "type". Throws Error(kUnsupported), listing the supported types, for any other type, and
// Error(kInvalidArgument) if the description is damaged.
std::unique_ptr<WordModel> make_word_model(const JsonObject& model);

}  // namespace coupler

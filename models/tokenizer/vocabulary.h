// The tokens of a tokenizer.json. Vocabulary: its model's, by text and by id; WordModel: turns
// words into them; AddedTokens: those that are matched as a whole before the text is divided, which
// are special tokens and added words. Immutable; safe to use from any thread. Do not depend on
// LibTorch.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "json_file.h"
#include "tokenizer/pre_tokenizer.h"
#include "unicode.h"

namespace coupler {

class Vocabulary {
 public:
  // "vocab" of tokenizer.json's model: token to id, or a list of [token, score], whose places are
  // ids. Throws Error(kInvalidArgument) for an id that is not a number or that two tokens share,
  // and for what is not a pair.
  explicit Vocabulary(const JsonObject& model);

  std::optional<int64_t> id(std::string_view text) const;
  // Null if no token has the id.
  const std::string* text(int64_t id) const;
  int64_t size() const { return static_cast<int64_t>(texts_.size()); }

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
std::unique_ptr<WordModel> make_unigram(const JsonObject& model);
// By "type". Throws Error(kUnsupported), listing the supported types, for any other type, and
// Error(kInvalidArgument) if the description is damaged.
std::unique_ptr<WordModel> make_word_model(const JsonObject& model);

struct AddedToken {
  int64_t id = 0;
  std::string content;
  std::string text;  // matched and decoded
  bool special = false;
  bool normalized = false;                         // matched in normalized text
  bool single_word = false;                        // not inside words
  bool strips_left = false, strips_right = false;  // includes adjacent white space
};

class AddedTokens {
 public:
  // descriptions: "added_tokens". Tokens that are matched in normalized text are normalized, too.
  AddedTokens(const std::vector<JsonObject>& descriptions, const Normalizer& normalizer);

  struct Piece {
    unicode::Span span;
    const AddedToken* token = nullptr;  // null: text between tokens
  };
  // The whole text as non-empty pieces, in order.
  std::vector<Piece> find_in_raw(std::string_view text) const { return find(text, raw_); }
  std::vector<Piece> find_in_normalized(std::string_view text) const {
    return find(text, normalized_);
  }

  // Null if there is none.
  const AddedToken* by_id(int64_t id) const;
  const AddedToken* by_content(const std::string& content) const;
  const std::map<int64_t, AddedToken>& all() const { return tokens_; }

 private:
  // By the first byte of their text; the longest first.
  using Index = std::map<char, std::vector<const AddedToken*>>;
  static std::vector<Piece> find(std::string_view text, const Index& index);

  std::map<int64_t, AddedToken> tokens_;
  Index raw_, normalized_;
};

}  // namespace coupler

// AddedTokens: tokens of tokenizer.json that are matched as a whole before the text is divided:
// special tokens and added words. Immutable; safe to use from any thread. Does not depend on
// LibTorch.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "json_file.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/unicode.h"

namespace coupler {

struct AddedToken {
  int64_t id = 0;
  std::string content;
  std::string text;  // matched and decoded; normalized if matched in normalized text
  bool special = false;
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
  // Keyed by first byte; the longest first.
  using Index = std::map<char, std::vector<std::pair<std::string, const AddedToken*>>>;
  static void add(Index& index, const std::string& text, const AddedToken& token);
  static std::vector<Piece> find(std::string_view text, const Index& index);

  std::map<int64_t, AddedToken> tokens_;
  Index raw_, normalized_;
};

}  // namespace coupler

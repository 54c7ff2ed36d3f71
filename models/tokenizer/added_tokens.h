// AddedTokens: tokens of tokenizer.json that are found in texts as a whole, before anything divides
// these: special ones, and words that were added. Immutable, any thread. Sees no LibTorch.
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
  std::string text;  // as it is found and decoded: normalised where texts are, before it is found
  bool special = false;
  bool single_word = false;                        // not inside of words
  bool strips_left = false, strips_right = false;  // takes white space beside it along
};

class AddedTokens {
 public:
  // descriptions: "added_tokens". What is found in normalised texts is normalised as they are.
  AddedTokens(const std::vector<JsonObject>& descriptions, const Normalizer& normalizer);

  struct Piece {
    unicode::Span span;
    const AddedToken* token = nullptr;  // null: text between
  };
  // All of a text, in order; none of the pieces is empty.
  std::vector<Piece> find_in_raw(std::string_view text) const { return find(text, raw_); }
  std::vector<Piece> find_in_normalized(std::string_view text) const {
    return find(text, normalized_);
  }

  // Null where none has it.
  const AddedToken* by_id(int64_t id) const;
  const AddedToken* by_content(const std::string& content) const;
  const std::map<int64_t, AddedToken>& all() const { return tokens_; }

 private:
  // What is looked for, by its first byte the longest first.
  using Index = std::map<char, std::vector<std::pair<std::string, const AddedToken*>>>;
  static void add(Index& index, const std::string& text, const AddedToken& token);
  static std::vector<Piece> find(std::string_view text, const Index& index);

  std::map<int64_t, AddedToken> tokens_;
  Index raw_, normalized_;
};

}  // namespace coupler

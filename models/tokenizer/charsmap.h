// Charsmap: sentencepiece's table of replacements for characters ("precompiled_charsmap"), by which
// T5 and others normalize text. Immutable; any thread. Does not depend on LibTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "json_file.h"

namespace coupler {

class Charsmap {
 public:
  // description: tokenizer.json's normalizer. Throws Error(kInvalidArgument) if its table is
  // damaged.
  explicit Charsmap(const JsonObject& description);

  // As tokenizers' Precompiled. text: UTF-8.
  std::string normalized(const std::string& text) const;

 private:
  // What replaces the shortest beginning of a part that the table has; nothing if it has none.
  std::optional<std::string_view> replacement(std::string_view part) const;

  // A double-array trie (Darts), whose values are positions in texts_, each up to a zero byte.
  std::vector<uint32_t> units_;
  std::string texts_;
};

}  // namespace coupler

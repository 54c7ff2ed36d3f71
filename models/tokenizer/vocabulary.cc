#include "tokenizer/vocabulary.h"

#include <fmt/format.h>

#include "io/file_text.h"
#include "tokenizer/unknown_kind.h"

namespace coupler {

Vocabulary::Vocabulary(const JsonObject& model) {
  const nlohmann::json& tokens = model.raw("vocab");
  if (!tokens.is_object())
    model.refuse("vocab", "is no object of tokens and their numbers",
                 "give a tokenizer.json of byte-level BPE, sentencepiece-style BPE or WordPiece");
  ids_.reserve(tokens.size());
  texts_.reserve(tokens.size());
  for (const auto& [text, id] : tokens.items()) {
    if (!id.is_number_unsigned())
      model.refuse("vocab", fmt::format("gives '{}' the number {}", shown(text), shown(id.dump())),
                   "numbers of tokens are 0 and above");
    const auto [token, is_new] = ids_.emplace(text, id.get<int64_t>());
    const auto [same, alone] = texts_.emplace(token->second, &token->first);
    if (!is_new || !alone)
      model.refuse("vocab",
                   fmt::format("gives the number {} to '{}' and to '{}'", token->second,
                               shown(*same->second), shown(text)),
                   "save the tokenizer anew; this file is damaged");
  }
}

std::optional<int64_t> Vocabulary::id(std::string_view text) const {
  const auto found = ids_.find(text);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

const std::string* Vocabulary::text(int64_t id) const {
  const auto found = texts_.find(id);
  return found == texts_.end() ? nullptr : found->second;
}

std::unique_ptr<WordModel> make_word_model(const JsonObject& model) {
  // Files of before 2020 name no type; theirs is BPE where there are merges.
  const std::string type = model.text("type", model.has("merges") ? "BPE" : "");
  if (type == "BPE") return make_bpe(model);
  if (type == "WordPiece") return make_word_piece(model);
  refuse_kind(model, "BPE, WordPiece");
}

}  // namespace coupler

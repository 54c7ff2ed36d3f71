#include "tokenizer/vocabulary.h"

#include <fmt/format.h>

#include "base/file_text.h"
#include "tokenizer/unknown_kind.h"

namespace coupler {

Vocabulary::Vocabulary(const JsonObject& model) {
  const nlohmann::json& tokens = model.raw("vocab");
  if (!tokens.is_object())
    model.refuse("vocab", "is not an object that maps tokens to ids",
                 "use a tokenizer.json of byte-level BPE, sentencepiece-style BPE or WordPiece");
  ids_.reserve(tokens.size());
  texts_.reserve(tokens.size());
  for (const auto& [text, id] : tokens.items()) {
    if (!id.is_number_unsigned())
      model.refuse("vocab", fmt::format("gives '{}' the id {}", shown(text), shown(id.dump())),
                   "use integers from 0 as token ids");
    const auto [token, is_new] = ids_.emplace(text, id.get<int64_t>());
    const auto [same, alone] = texts_.emplace(token->second, &token->first);
    if (!is_new || !alone)
      model.refuse("vocab",
                   fmt::format("gives the id {} to both '{}' and '{}'", token->second,
                               shown(*same->second), shown(text)),
                   "save the tokenizer again; this file is damaged");
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
  // Files from before 2020 have no "type"; those with merges are BPE.
  const std::string type = model.text("type", model.has("merges") ? "BPE" : "");
  if (type == "BPE") return make_bpe(model);
  if (type == "WordPiece") return make_word_piece(model);
  refuse_kind(model, "BPE, WordPiece");
}

}  // namespace coupler

#include "tokenizer/vocabulary.h"

#include <fmt/format.h>

#include "base/text.h"
#include "tokenizer/tokenizer_json.h"
#include "tokenizer/unicode.h"

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
      model.refuse("vocab",
                   fmt::format("gives '{}' the id {}", for_message(text), for_message(id.dump())),
                   "use integers from 0 as token ids");
    const auto [token, is_new] = ids_.emplace(text, id.get<int64_t>());
    const auto [same, alone] = texts_.emplace(token->second, &token->first);
    if (!is_new || !alone)
      model.refuse("vocab",
                   fmt::format("gives the id {} to both '{}' and '{}'", token->second,
                               for_message(*same->second), for_message(text)),
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

// WordPiece: repeatedly takes the longest token that the rest of the word starts with.

namespace {

class WordPiece : public WordModel {
 public:
  explicit WordPiece(const JsonObject& model)
      : vocabulary_(model),
        prefix_(model.text("continuing_subword_prefix", "##")),
        longest_(static_cast<size_t>(model.size("max_input_chars_per_word", 100))) {
    const std::string unknown = model.text("unk_token", "[UNK]");
    const auto id = vocabulary_.id(unknown);
    if (!id)
      model.refuse("unk_token",
                   "names '" + for_message(unknown) + "', which is not in the vocabulary",
                   "save the tokenizer again; this file is damaged");
    unknown_ = *id;
  }

  const Vocabulary& vocabulary() const override { return vocabulary_; }

  void tokenize(const std::string& word, std::vector<int64_t>& ids) const override {
    const auto characters = unicode::characters(word);
    const size_t before = ids.size();
    size_t first = characters.size() > longest_ ? characters.size() : 0;
    bool known = characters.size() <= longest_;
    while (first < characters.size()) {
      size_t last = characters.size();
      for (; last > first; --last) {
        const size_t begin = characters[first].span.begin;
        std::string piece = word.substr(begin, characters[last - 1].span.end - begin);
        if (first > 0) piece.insert(0, prefix_);
        if (const auto id = vocabulary_.id(piece)) {
          ids.push_back(*id);
          break;
        }
      }
      if (last == first) {
        known = false;
        break;
      }
      first = last;
    }
    if (known) return;
    ids.resize(before);
    ids.push_back(unknown_);
  }

 private:
  const Vocabulary vocabulary_;
  const std::string prefix_;
  const size_t longest_;
  int64_t unknown_ = 0;
};

}  // namespace

std::unique_ptr<WordModel> make_word_piece(const JsonObject& model) {
  return std::make_unique<WordPiece>(model);
}

}  // namespace coupler

#include "tokenizer/vocabulary.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "tokenizer/tokenizer_json.h"
#include "unicode.h"

namespace coupler {
namespace {

// Repeatedly takes the longest token that the rest of the word starts with.
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
    std::vector<int64_t> pieces;
    bool known = characters.size() <= longest_;
    for (size_t first = 0; known && first < characters.size();) {
      known = false;
      for (size_t last = characters.size(); last > first; --last) {
        const unicode::Span span{characters[first].span.begin, characters[last - 1].span.end};
        const auto id = vocabulary_.id((first > 0 ? prefix_ : "") + span.of(word));
        if (!id) continue;
        pieces.push_back(*id);
        first = last;
        known = true;
        break;
      }
    }
    if (!known) pieces = {unknown_};
    ids.insert(ids.end(), pieces.begin(), pieces.end());
  }

 private:
  const Vocabulary vocabulary_;
  const std::string prefix_;
  const size_t longest_;
  int64_t unknown_ = 0;
};

bool ends_with_word(std::string_view text) {
  return !text.empty() && unicode::is_word(unicode::characters(text).back().code);
}
bool starts_with_word(std::string_view text) {
  return !text.empty() && unicode::is_word(unicode::characters(text).front().code);
}

}  // namespace

Vocabulary::Vocabulary(const JsonObject& model) {
  const nlohmann::json& tokens = model.raw("vocab");
  const bool scored = model.text("type", "") == "Unigram";
  if (scored ? !tokens.is_array() : !tokens.is_object())
    model.refuse("vocab",
                 scored ? "is not a list of tokens and their scores"
                        : "is not an object that maps tokens to ids",
                 "use a tokenizer.json of BPE, Unigram or WordPiece");
  ids_.reserve(tokens.size());
  texts_.reserve(tokens.size());
  if (scored) {
    for (const nlohmann::json& entry : tokens) {
      if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string())
        model.refuse(
            "vocab",
            fmt::format("has {}, which is not a token and its score", for_message(entry.dump())),
            "save the tokenizer again; this file is damaged");
      const auto id = static_cast<int64_t>(texts_.size());
      // A few published vocabularies have a token twice; its text means the last one.
      const auto [token, is_new] = ids_.insert_or_assign(entry[0].get<std::string>(), id);
      texts_.emplace(id, &token->first);
    }
    return;
  }
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
  if (type == "Unigram") return make_unigram(model);
  if (type == "WordPiece") return std::make_unique<WordPiece>(model);
  refuse_kind(model, "BPE, Unigram, WordPiece");
}

AddedTokens::AddedTokens(const std::vector<JsonObject>& descriptions,
                         const Normalizer& normalizer) {
  for (const JsonObject& description : descriptions) {
    AddedToken token;
    token.id = description.integer("id");
    token.content = description.text("content");
    token.special = description.flag("special", false);
    token.single_word = description.flag("single_word", false);
    token.strips_left = description.flag("lstrip", false);
    token.strips_right = description.flag("rstrip", false);
    if (token.content.empty()) continue;
    token.normalized = description.flag("normalized", !token.special);
    token.text = token.normalized ? normalizer(token.content) : token.content;
    tokens_[token.id] = token;
  }
  for (const auto& [id, token] : tokens_) {
    if (token.text.empty()) continue;
    auto& same_start = (token.normalized ? normalized_ : raw_)[token.text[0]];
    same_start.push_back(&token);
    std::stable_sort(same_start.begin(), same_start.end(),
                     [](const auto* a, const auto* b) { return a->text.size() > b->text.size(); });
  }
}

std::vector<AddedTokens::Piece> AddedTokens::find(std::string_view text, const Index& index) {
  std::vector<Piece> pieces;
  size_t told = 0, at = 0;
  while (at < text.size()) {
    const AddedToken* token = nullptr;
    if (const auto same_start = index.find(text[at]); same_start != index.end()) {
      const auto& all = same_start->second;
      const auto found = std::find_if(all.begin(), all.end(), [&](const AddedToken* candidate) {
        return text.substr(at).starts_with(candidate->text);
      });
      if (found != all.end()) token = *found;
    }
    if (token == nullptr) {
      ++at;
      continue;
    }
    size_t begin = at, end = at + token->text.size();
    at = end;
    if (token->single_word &&
        (ends_with_word(text.substr(0, begin)) || starts_with_word(text.substr(end))))
      continue;
    if (token->strips_left) begin = std::max(told, unicode::blank_end(text.substr(0, begin)));
    if (token->strips_right) end += unicode::blank_start(text.substr(end));
    if (told < begin) pieces.push_back({{told, begin}, nullptr});
    pieces.push_back({{begin, end}, token});
    told = at = end;
  }
  if (told < text.size()) pieces.push_back({{told, text.size()}, nullptr});
  return pieces;
}

const AddedToken* AddedTokens::by_id(int64_t id) const {
  const auto found = tokens_.find(id);
  return found == tokens_.end() ? nullptr : &found->second;
}

const AddedToken* AddedTokens::by_content(const std::string& content) const {
  for (const auto& [id, token] : tokens_) {
    if (token.content == content) return &token;
  }
  return nullptr;
}

}  // namespace coupler

#include "tokenizer/vocabulary.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "tokenizer/tokenizer_json.h"
#include "tokenizer/unicode.h"

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

bool ends_with_word(std::string_view text) {
  return !text.empty() && unicode::is_word(unicode::characters(text).back().code);
}
bool starts_with_word(std::string_view text) {
  return !text.empty() && unicode::is_word(unicode::characters(text).front().code);
}

// Where trailing white space begins, and where leading white space ends.
size_t blank_end(std::string_view text) {
  size_t begin = text.size();
  const auto characters = unicode::characters(text);
  for (auto at = characters.rbegin(); at != characters.rend(); ++at) {
    if (!unicode::is_white_space(at->code)) break;
    begin = at->span.begin;
  }
  return begin;
}
size_t blank_start(std::string_view text) {
  for (const unicode::Character& character : unicode::characters(text)) {
    if (!unicode::is_white_space(character.code)) return character.span.begin;
  }
  return text.size();
}

}  // namespace

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

std::unique_ptr<WordModel> make_word_piece(const JsonObject& model) {
  return std::make_unique<WordPiece>(model);
}

AddedTokens::AddedTokens(const std::vector<JsonObject>& descriptions,
                         const Normalizer& normalizer) {
  std::set<int64_t> normalized;
  for (const JsonObject& description : descriptions) {
    AddedToken token;
    token.id = description.integer("id");
    token.content = description.text("content");
    token.special = description.flag("special", false);
    token.single_word = description.flag("single_word", false);
    token.strips_left = description.flag("lstrip", false);
    token.strips_right = description.flag("rstrip", false);
    if (token.content.empty()) continue;
    token.text = token.content;
    if (description.flag("normalized", !token.special)) {
      normalized.insert(token.id);
      token.text = normalizer(token.content);
    }
    tokens_[token.id] = token;
  }
  for (const auto& [id, token] : tokens_) {
    add(normalized.count(id) != 0 ? normalized_ : raw_, token.text, token);
  }
}

void AddedTokens::add(Index& index, const std::string& text, const AddedToken& token) {
  if (text.empty()) return;
  auto& same_start = index[text[0]];
  same_start.emplace_back(text, &token);
  std::stable_sort(same_start.begin(), same_start.end(),
                   [](const auto& a, const auto& b) { return a.first.size() > b.first.size(); });
}

std::vector<AddedTokens::Piece> AddedTokens::find(std::string_view text, const Index& index) {
  std::vector<Piece> pieces;
  size_t told = 0, at = 0;
  while (at < text.size()) {
    const auto candidates = index.find(text[at]);
    const std::string_view rest = text.substr(at);
    const AddedToken* token = nullptr;
    size_t size = 0;
    if (candidates != index.end()) {
      for (const auto& [content, candidate] : candidates->second) {
        if (!rest.starts_with(content)) continue;
        token = candidate;
        size = content.size();
        break;
      }
    }
    if (token == nullptr) {
      ++at;
      continue;
    }
    size_t begin = at, end = at + size;
    at = end;
    if (token->single_word &&
        (ends_with_word(text.substr(0, begin)) || starts_with_word(text.substr(end))))
      continue;
    if (token->strips_left) begin = std::max(told, blank_end(text.substr(0, begin)));
    if (token->strips_right) end += blank_start(text.substr(end));
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

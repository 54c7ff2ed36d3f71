#include "tokenizer/added_tokens.h"

#include <algorithm>

namespace coupler {
namespace {

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

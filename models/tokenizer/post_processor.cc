#include "tokenizer/post_processor.h"

#include <string_view>
#include <utility>

#include "base/text.h"
#include "tokenizer/tokenizer_json.h"
#include "unicode.h"

namespace coupler {
namespace {

// ["[SEP]", 102]
int64_t id_in_pair(const JsonObject& description, const char* key) {
  const nlohmann::json& pair = description.raw(key);
  if (!pair.is_array() || pair.size() != 2 || !pair[1].is_number_integer())
    description.refuse(key, "is not a pair of a token and its id",
                       "save the tokenizer again; this file is damaged");
  return pair[1].get<int64_t>();
}

PostProcessor of_template(const JsonObject& description) {
  PostProcessor post_processor;
  bool after = false;
  const auto tokens = description.maybe_object("special_tokens");
  for (const JsonObject& item : description.objects("single")) {
    if (item.has("Sequence")) {
      after = true;
      continue;
    }
    const std::string name = item.object("SpecialToken").text("id");
    if (!tokens)
      description.refuse("special_tokens", "is missing, but '" + name + "' is used",
                         "save the tokenizer again; this file is damaged");
    for (const int64_t id : tokens->object(name.c_str()).integers("ids"))
      (after ? post_processor.after : post_processor.before).push_back(id);
  }
  return post_processor;
}

using Pieces = std::vector<std::string>;

std::string replaced(const std::string& text, const std::string& from, const std::string& to) {
  return unicode::Pattern::literal(from).replaced(text, to);
}

Pieces join_byte_level(const Pieces& tokens) {
  std::string bytes;
  for (const std::string& token : tokens) bytes += from_byte_alphabet(token).value_or(token);
  return {unicode::repaired(bytes)};
}

// Tokens such as <0x0A> are bytes; a run of them decodes to text, or each to U+FFFD if not UTF-8.
Pieces byte_fallback(const Pieces& tokens) {
  Pieces pieces;
  std::string bytes;
  const auto flush = [&] {
    if (bytes.empty()) return;
    if (valid_utf8(bytes)) {
      pieces.push_back(bytes);
    } else {
      pieces.insert(pieces.end(), bytes.size(), "\uFFFD");
    }
    bytes.clear();
  };
  for (const std::string& token : tokens) {
    const bool shaped = token.size() == 6 && token.starts_with("<0x") && token.ends_with('>');
    constexpr std::string_view kDigits = "0123456789abcdefABCDEF";
    if (shaped && kDigits.find(token[3]) != std::string_view::npos &&
        kDigits.find(token[4]) != std::string_view::npos) {
      bytes += static_cast<char>(std::stoi(token.substr(3, 2), nullptr, 16));
    } else {
      flush();
      pieces.push_back(token);
    }
  }
  flush();
  return pieces;
}

Decoder strip_tokens(const JsonObject& description) {
  const std::string content = description.text("content");
  const int64_t start = description.integer("start", 0), stop = description.integer("stop", 0);
  return [=](Pieces tokens) {
    for (std::string& token : tokens) {
      for (int64_t i = 0; i < start && token.starts_with(content); ++i)
        token.erase(0, content.size());
      for (int64_t i = 0; i < stop && token.ends_with(content); ++i)
        token.erase(token.size() - content.size());
    }
    return tokens;
  };
}

Decoder replace_in_tokens(const JsonObject& description) {
  return [pattern = pattern_of(description), content = description.text("content")](Pieces tokens) {
    for (std::string& token : tokens) token = pattern.replaced(token, content);
    return tokens;
  };
}

Decoder join_metaspace(const JsonObject& description) {
  const std::string mark = description.text("replacement", "▁");
  const bool older = description.flag("add_prefix_space", true);
  const bool prefixed = description.text("prepend_scheme", older ? "always" : "never") != "never";
  return [=](Pieces tokens) {
    for (size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = replaced(tokens[i], mark, i == 0 && prefixed ? "" : " ");
    return tokens;
  };
}

// Undoes WordPiece's splitting of English punctuation.
std::string marks_joined(std::string text) {
  constexpr std::pair<const char*, const char*> kPairs[] = {
      {" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
      {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
      {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : kPairs) text = replaced(text, from, to);
  return text;
}

Decoder word_piece(const JsonObject& description) {
  const std::string prefix = description.text("prefix", "##");
  const bool cleanup = description.flag("cleanup", true);
  return [=](Pieces tokens) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      std::string& token = tokens[i];
      if (i > 0 && token.starts_with(prefix)) {
        token.erase(0, prefix.size());
      } else if (i > 0) {
        token.insert(token.begin(), ' ');
      }
      if (cleanup) token = marks_joined(std::move(token));
    }
    return tokens;
  };
}

// Replaces the end-of-word suffix with a space, except at the end.
Decoder word_ends(const std::string& suffix) {
  return [=](Pieces tokens) {
    for (size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = replaced(tokens[i], suffix, i + 1 == tokens.size() ? "" : " ");
    return tokens;
  };
}

Pieces fuse(const Pieces& tokens) {
  std::string text;
  for (const std::string& token : tokens) text += token;
  return {text};
}

}  // namespace

PostProcessor make_post_processor(const std::optional<JsonObject>& description) {
  if (!description) return {};
  const std::string type = description->text("type");
  if (type == "ByteLevel") return {};  // it only changes offsets
  if (type == "TemplateProcessing") return of_template(*description);
  if (type == "BertProcessing" || type == "RobertaProcessing")
    return {{id_in_pair(*description, "cls")}, {id_in_pair(*description, "sep")}};
  if (type == "Sequence") {
    PostProcessor post_processor;
    for (const JsonObject& part : description->objects("processors")) {
      const PostProcessor around = make_post_processor(part);
      post_processor.before.insert(post_processor.before.begin(), around.before.begin(),
                                   around.before.end());
      post_processor.after.insert(post_processor.after.end(), around.after.begin(),
                                  around.after.end());
    }
    return post_processor;
  }
  refuse_kind(*description,
              "Sequence, ByteLevel, TemplateProcessing, BertProcessing, RobertaProcessing");
}

Decoder make_decoder(const std::optional<JsonObject>& description) {
  if (!description) {
    return [](Pieces tokens) {
      for (size_t i = 1; i < tokens.size(); ++i) tokens[i].insert(tokens[i].begin(), ' ');
      return tokens;
    };
  }
  const std::string type = description->text("type");
  if (type == "Sequence") return make_sequence(*description, "decoders", make_decoder);
  if (type == "ByteLevel") return join_byte_level;
  if (type == "ByteFallback") return byte_fallback;
  if (type == "Fuse") return fuse;
  if (type == "Strip") return strip_tokens(*description);
  if (type == "Replace") return replace_in_tokens(*description);
  if (type == "Metaspace") return join_metaspace(*description);
  if (type == "WordPiece") return word_piece(*description);
  if (type == "BPEDecoder") return word_ends(description->text("suffix", "</w>"));
  refuse_kind(*description,
              "Sequence, ByteLevel, ByteFallback, Fuse, Strip, Replace, Metaspace, WordPiece, "
              "BPEDecoder");
}

}  // namespace coupler

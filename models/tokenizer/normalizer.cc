#include "tokenizer/normalizer.h"

#include <utility>
#include <vector>

#include "tokenizer/tokenizer_json.h"
#include "tokenizer/unicode.h"

namespace coupler {
namespace {

std::string without(const std::string& text, bool (*unwanted)(char32_t)) {
  return unicode::map(text, [&](char32_t code, std::string& out) {
    if (!unwanted(code)) unicode::append(out, code);
  });
}

std::string lower(const std::string& text) {
  return unicode::map(text,
                      [](char32_t code, std::string& out) { unicode::append_lower(out, code); });
}

// Removes control characters and turns all white space into spaces.
std::string visible(const std::string& text) {
  return unicode::map(text, [](char32_t code, std::string& out) {
    if (code == 0 || code == 0xFFFD || unicode::is_control(code)) return;
    unicode::append(out, unicode::is_white_space(code) ? U' ' : code);
  });
}

std::string with_ideographs_apart(const std::string& text) {
  return unicode::map(text, [](char32_t code, std::string& out) {
    const bool apart = unicode::is_ideograph(code);
    if (apart) out += ' ';
    unicode::append(out, code);
    if (apart) out += ' ';
  });
}

Normalizer bert(const JsonObject& description) {
  const bool clean = description.flag("clean_text", true);
  const bool ideographs = description.flag("handle_chinese_chars", true);
  const bool lowercase = description.flag("lowercase", true);
  const bool accents = description.flag("strip_accents", lowercase);
  return [=](std::string text) {
    if (clean) text = visible(text);
    if (ideographs) text = with_ideographs_apart(text);
    if (accents)
      text = without(unicode::normalized(text, unicode::Form::kNfd), unicode::is_nonspacing_mark);
    return lowercase ? lower(text) : text;
  };
}

Normalizer strip_ends(bool left, bool right) {
  return [=](const std::string& text) {
    const auto characters = unicode::characters(text);
    size_t first = 0, last = characters.size();
    while (left && first < last && unicode::is_white_space(characters[first].code)) ++first;
    while (right && last > first && unicode::is_white_space(characters[last - 1].code)) --last;
    if (first == last) return std::string();
    const size_t begin = characters[first].span.begin;
    return text.substr(begin, characters[last - 1].span.end - begin);
  };
}

Normalizer replace_pattern(const unicode::Pattern& pattern, const std::string& content) {
  return [=](const std::string& text) {
    std::string result;
    size_t at = 0;
    for (const unicode::Span& span : pattern.find(text)) {
      result.append(text, at, span.begin - at).append(content);
      at = span.end;
    }
    return result.append(text, at);
  };
}

Normalizer in_sequence(const std::vector<JsonObject>& descriptions) {
  std::vector<Normalizer> parts;
  parts.reserve(descriptions.size());
  for (const JsonObject& description : descriptions) parts.push_back(make_normalizer(description));
  return [parts](std::string text) {
    for (const Normalizer& part : parts) text = part(std::move(text));
    return text;
  };
}

}  // namespace

Normalizer make_normalizer(const std::optional<JsonObject>& description) {
  if (!description) return [](std::string text) { return text; };
  const std::string type = description->text("type");
  if (type == "Sequence") return in_sequence(description->objects("normalizers"));
  constexpr std::pair<const char*, unicode::Form> kForms[] = {{"NFC", unicode::Form::kNfc},
                                                              {"NFD", unicode::Form::kNfd},
                                                              {"NFKC", unicode::Form::kNfkc},
                                                              {"NFKD", unicode::Form::kNfkd}};
  for (const auto& [name, form] : kForms) {
    if (type == name)
      return [form = form](const std::string& text) { return unicode::normalized(text, form); };
  }
  if (type == "Lowercase") return lower;
  if (type == "StripAccents")
    return [](const std::string& text) { return without(text, unicode::is_mark); };
  if (type == "Strip")
    return strip_ends(description->flag("strip_left", true),
                      description->flag("strip_right", true));
  if (type == "Replace")
    return replace_pattern(pattern_of(*description), description->text("content"));
  if (type == "Prepend") {
    return [prepended = description->text("prepend")](const std::string& text) {
      return text.empty() ? text : prepended + text;
    };
  }
  if (type == "BertNormalizer") return bert(*description);
  refuse_kind(*description,
              "Sequence, NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Strip, Replace, Prepend, "
              "BertNormalizer");
}

}  // namespace coupler

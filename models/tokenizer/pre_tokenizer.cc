#include "tokenizer/pre_tokenizer.h"

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "json_file.h"
#include "tokenizer/charsmap.h"
#include "tokenizer/tokenizer_json.h"
#include "unicode.h"

namespace coupler {
namespace {

std::string without(const std::string& text, bool (*unwanted)(char32_t)) {
  return unicode::map(text, [&](char32_t code, std::string& out) {
    if (!unwanted(code)) unicode::append(out, code);
  });
}

std::string unicode_lower(const std::string& text) {
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
    return lowercase ? unicode_lower(text) : text;
  };
}

Normalizer strip_ends(bool left, bool right) {
  return [=](const std::string& text) {
    const size_t begin = left ? unicode::blank_start(text) : 0;
    const size_t end = right ? unicode::blank_end(text) : text.size();
    return begin < end ? text.substr(begin, end - begin) : "";
  };
}

// What happens to the found parts.
enum class Found { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

struct Part {
  unicode::Span span;
  bool found = false;
};

// The found parts and the parts between them.
std::vector<Part> all_parts(size_t size, const std::vector<unicode::Span>& found, bool invert) {
  std::vector<Part> parts;
  size_t at = 0;
  for (const unicode::Span& span : found) {
    if (at < span.begin) parts.push_back({{at, span.begin}, invert});
    parts.push_back({span, !invert});
    at = span.end;
  }
  if (at < size) parts.push_back({{at, size}, invert});
  return parts;
}

// Whether a part becomes one with the part before it.
bool joins(Found behavior, const Part& previous, const Part& part) {
  switch (behavior) {
    case Found::kMergedWithPrevious:
      return part.found && !previous.found;
    case Found::kMergedWithNext:
      return previous.found && !part.found;
    case Found::kContiguous:
      return previous.found == part.found;
    default:
      return false;
  }
}

// Parses a key's "Isolated", … Throws Error(kInvalidArgument) for an unknown value.
Found found_of(const JsonObject& description, const char* key, Found otherwise) {
  if (!description.has(key)) return otherwise;
  const std::string word = description.text(key);
  constexpr std::pair<const char*, Found> kWords[] = {
      {"Removed", Found::kRemoved},
      {"Isolated", Found::kIsolated},
      {"MergedWithPrevious", Found::kMergedWithPrevious},
      {"MergedWithNext", Found::kMergedWithNext},
      {"Contiguous", Found::kContiguous}};
  for (const auto& [name, found] : kWords) {
    if (word == name) return found;
  }
  description.refuse(key, "is '" + word + "', which is not one of its values",
                     "use Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

// Appends the parts of a word. found: in order. invert: treats the parts between as found instead.
void split(const Word& word, const std::vector<unicode::Span>& found, Found behavior, bool invert,
           std::vector<Word>& result) {
  const std::vector<Part> parts = all_parts(word.text.size(), found, invert);
  for (size_t i = 0; i < parts.size(); ++i) {
    const Part& part = parts[i];
    if (part.found && behavior == Found::kRemoved) continue;
    if (i > 0 && joins(behavior, parts[i - 1], part)) {
      result.back().text += part.span.of(word.text);
    } else {
      result.push_back({part.span.of(word.text), word.at_start && part.span.begin == 0});
    }
  }
}

// The position of each matching character.
std::vector<unicode::Span> find_characters(std::string_view text, bool (*wanted)(char32_t)) {
  std::vector<unicode::Span> result;
  for (const unicode::Character& character : unicode::characters(text)) {
    if (wanted(character.code)) result.push_back(character.span);
  }
  return result;
}

// GPT-2's pattern.
constexpr const char* kByteLevel =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

PreTokenizer by_characters(bool (*wanted)(char32_t), Found behavior) {
  return [=](const std::vector<Word>& words) {
    std::vector<Word> parts;
    for (const Word& word : words)
      split(word, find_characters(word.text, wanted), behavior, false, parts);
    return parts;
  };
}

PreTokenizer by_pattern(const unicode::Pattern& pattern, Found behavior, bool invert) {
  return [=](const std::vector<Word>& words) {
    std::vector<Word> parts;
    for (const Word& word : words) split(word, pattern.find(word.text), behavior, invert, parts);
    return parts;
  };
}

PreTokenizer split_byte_level(const JsonObject& description) {
  const bool prefix = description.flag("add_prefix_space", true);
  const bool divides = description.flag("use_regex", true);
  const auto divide = by_pattern(unicode::Pattern::regex(kByteLevel, description.where()),
                                 Found::kIsolated, /*invert=*/false);
  return [=](std::vector<Word> words) {
    for (Word& word : words) {
      if (prefix && !word.text.starts_with(' ')) word.text.insert(word.text.begin(), ' ');
    }
    if (divides) words = divide(std::move(words));
    for (Word& word : words) word.text = to_byte_alphabet(word.text);
    return words;
  };
}

PreTokenizer split_metaspace(const JsonObject& description) {
  const std::string mark = description.text("replacement", "▁");
  const bool older = description.flag("add_prefix_space", true);
  const std::string scheme = description.text("prepend_scheme", older ? "always" : "never");
  if (scheme != "always" && scheme != "first" && scheme != "never")
    description.refuse("prepend_scheme", "is '" + scheme + "', which is not one of its values",
                       "use always, first or never");
  const bool divides = description.flag("split", true);
  const auto blank = unicode::Pattern::literal(" ");
  const auto divide =
      by_pattern(unicode::Pattern::literal(mark), Found::kMergedWithNext, /*invert=*/false);
  return [=](std::vector<Word> words) {
    for (Word& word : words) {
      const std::string text = blank.replaced(word.text, mark);
      const bool wanted = scheme == "always" || (scheme == "first" && word.at_start);
      word.text = wanted && !text.starts_with(mark) ? mark + text : text;
    }
    return divides ? divide(std::move(words)) : words;
  };
}

}  // namespace

Normalizer make_normalizer(const std::optional<JsonObject>& description) {
  if (!description) return [](std::string text) { return text; };
  const std::string type = description->text("type");
  if (type == "Sequence") return make_sequence(*description, "normalizers", make_normalizer);
  constexpr std::pair<const char*, unicode::Form> kForms[] = {{"NFC", unicode::Form::kNfc},
                                                              {"NFD", unicode::Form::kNfd},
                                                              {"NFKC", unicode::Form::kNfkc},
                                                              {"NFKD", unicode::Form::kNfkd}};
  for (const auto& [name, form] : kForms) {
    if (type == name)
      return [form = form](const std::string& text) { return unicode::normalized(text, form); };
  }
  if (type == "Lowercase") return unicode_lower;
  if (type == "StripAccents")
    return [](const std::string& text) { return without(text, unicode::is_mark); };
  if (type == "Strip")
    return strip_ends(description->flag("strip_left", true),
                      description->flag("strip_right", true));
  if (type == "Replace")
    return [pattern = pattern_of(*description), content = description->text("content")](
               const std::string& text) { return pattern.replaced(text, content); };
  if (type == "Prepend") {
    return [prepended = description->text("prepend")](const std::string& text) {
      return text.empty() ? text : prepended + text;
    };
  }
  if (type == "BertNormalizer") return bert(*description);
  if (type == "Precompiled") {
    return [table = std::make_shared<const Charsmap>(*description)](const std::string& text) {
      return table->normalized(text);
    };
  }
  refuse_kind(*description,
              "Sequence, NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Strip, Replace, Prepend, "
              "BertNormalizer, Precompiled");
}

PreTokenizer make_pre_tokenizer(const std::optional<JsonObject>& description) {
  if (!description) return [](std::vector<Word> words) { return words; };
  const std::string type = description->text("type");
  if (type == "Sequence") return make_sequence(*description, "pretokenizers", make_pre_tokenizer);
  if (type == "ByteLevel") return split_byte_level(*description);
  if (type == "Metaspace") return split_metaspace(*description);
  if (type == "Split")
    return by_pattern(pattern_of(*description),
                      found_of(*description, "behavior", Found::kIsolated),
                      description->flag("invert", false));
  if (type == "WhitespaceSplit") return by_characters(unicode::is_white_space, Found::kRemoved);
  if (type == "Whitespace")
    return by_pattern(unicode::Pattern::regex(R"(\w+|[^\w\s]+)", description->where()),
                      Found::kRemoved, /*invert=*/true);
  if (type == "BertPreTokenizer")
    return in_sequence<PreTokenizer>({by_characters(unicode::is_white_space, Found::kRemoved),
                                      by_characters(unicode::is_punctuation, Found::kIsolated)});
  if (type == "Digits")
    return by_characters(unicode::is_number, description->flag("individual_digits", false)
                                                 ? Found::kIsolated
                                                 : Found::kContiguous);
  if (type == "Punctuation")
    return by_characters(unicode::is_punctuation,
                         found_of(*description, "behavior", Found::kIsolated));
  refuse_kind(*description,
              "Sequence, ByteLevel, Metaspace, Split, Whitespace, WhitespaceSplit, "
              "BertPreTokenizer, Digits, Punctuation");
}

}  // namespace coupler

#include "tokenizer/pre_tokenizer.h"

#include <utility>

#include "tokenizer/byte_alphabet.h"
#include "tokenizer/pattern_of.h"
#include "tokenizer/split.h"
#include "tokenizer/unicode.h"
#include "tokenizer/unknown_kind.h"

namespace coupler {
namespace {

// GPT-2's pattern.
constexpr const char* kByteLevel =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

PreTokenizer by_characters(bool (*wanted)(char32_t), Found behaviour) {
  return [=](const std::vector<Word>& words) {
    std::vector<Word> parts;
    for (const Word& word : words)
      split(word, find_characters(word.text, wanted), behaviour, false, parts);
    return parts;
  };
}

PreTokenizer by_pattern(const unicode::Pattern& pattern, Found behaviour, bool invert) {
  return [=](const std::vector<Word>& words) {
    std::vector<Word> parts;
    for (const Word& word : words) split(word, pattern.find(word.text), behaviour, invert, parts);
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
  const auto divide =
      by_pattern(unicode::Pattern::literal(mark), Found::kMergedWithNext, /*invert=*/false);
  return [=](std::vector<Word> words) {
    for (Word& word : words) {
      std::string text;
      for (const char byte : word.text) {
        if (byte == ' ') {
          text += mark;
        } else {
          text += byte;
        }
      }
      const bool wanted = scheme == "always" || (scheme == "first" && word.at_start);
      word.text = wanted && !text.starts_with(mark) ? mark + text : text;
    }
    return divides ? divide(std::move(words)) : words;
  };
}

PreTokenizer one_by_one(std::vector<PreTokenizer> parts) {
  return [parts = std::move(parts)](std::vector<Word> words) {
    for (const PreTokenizer& part : parts) words = part(std::move(words));
    return words;
  };
}

}  // namespace

PreTokenizer make_pre_tokenizer(const std::optional<JsonObject>& description) {
  if (!description) return [](std::vector<Word> words) { return words; };
  const std::string type = description->text("type");
  if (type == "Sequence") {
    std::vector<PreTokenizer> parts;
    for (const JsonObject& part : description->objects("pretokenizers"))
      parts.push_back(make_pre_tokenizer(part));
    return one_by_one(std::move(parts));
  }
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
    return one_by_one({by_characters(unicode::is_white_space, Found::kRemoved),
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

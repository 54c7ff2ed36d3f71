#include "tokenizer/split.h"

#include <algorithm>
#include <utility>

namespace coupler {
namespace {

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

// Joins each found part to the one before it, unless that was found as well.
std::vector<Part> merged_with_previous(const std::vector<Part>& parts) {
  std::vector<Part> merged;
  bool previous = false;
  for (const Part& part : parts) {
    if (part.found && !previous && !merged.empty()) {
      merged.back().span.end = part.span.end;
    } else {
      merged.push_back(part);
    }
    previous = part.found;
  }
  return merged;
}

std::vector<Part> merged_with_next(std::vector<Part> parts) {
  std::reverse(parts.begin(), parts.end());
  std::vector<Part> merged;
  bool previous = false;
  for (const Part& part : parts) {
    if (part.found && !previous && !merged.empty()) {
      merged.back().span.begin = part.span.begin;
    } else {
      merged.push_back(part);
    }
    previous = part.found;
  }
  std::reverse(merged.begin(), merged.end());
  return merged;
}

std::vector<Part> contiguous(const std::vector<Part>& parts) {
  std::vector<Part> merged;
  for (const Part& part : parts) {
    if (!merged.empty() && merged.back().found == part.found) {
      merged.back().span.end = part.span.end;
    } else {
      merged.push_back(part);
    }
  }
  return merged;
}

}  // namespace

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

void split(const Word& word, const std::vector<unicode::Span>& found, Found behaviour, bool invert,
           std::vector<Word>& result) {
  std::vector<Part> parts = all_parts(word.text.size(), found, invert);
  if (behaviour == Found::kMergedWithPrevious) parts = merged_with_previous(parts);
  if (behaviour == Found::kMergedWithNext) parts = merged_with_next(std::move(parts));
  if (behaviour == Found::kContiguous) parts = contiguous(parts);
  for (const Part& part : parts) {
    if (part.found && behaviour == Found::kRemoved) continue;
    result.push_back({word.text.substr(part.span.begin, part.span.end - part.span.begin),
                      word.at_start && part.span.begin == 0});
  }
}

std::vector<unicode::Span> find_characters(std::string_view text, bool (*wanted)(char32_t)) {
  std::vector<unicode::Span> result;
  for (const unicode::Character& character : unicode::characters(text)) {
    if (wanted(character.code)) result.push_back(character.span);
  }
  return result;
}

}  // namespace coupler

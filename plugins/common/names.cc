#include "common/names.h"

#include <algorithm>

namespace db {

std::vector<std::string> split_list(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  std::vector<std::string> items;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    std::string_view item = text.substr(0, comma);
    text.remove_prefix(std::min(comma + 1, text.size()));
    item.remove_prefix(std::min(item.find_first_not_of(kBlanks), item.size()));
    item = item.substr(0, item.find_last_not_of(kBlanks) + 1);
    if (!item.empty()) items.emplace_back(item);
  }
  return items;
}

bool matches(std::string_view pattern, std::string_view name) {
  // fits[i]: the part of the pattern read so far matches the first i characters of the name.
  // A table, because trying the stars one after another can take exponential time.
  std::vector<bool> fits(name.size() + 1, false);
  fits[0] = true;
  for (size_t p = 0; p < pattern.size(); ++p) {
    if (pattern[p] != '*') {
      for (size_t i = name.size(); i > 0; --i) fits[i] = fits[i - 1] && name[i - 1] == pattern[p];
      fits[0] = false;
      continue;
    }
    const bool any = p + 1 < pattern.size() && pattern[p + 1] == '*';
    if (any) ++p;
    for (size_t i = 1; i <= name.size(); ++i)
      if (fits[i - 1] && (any || name[i - 1] != '.')) fits[i] = true;
  }
  return fits[name.size()];
}

std::string list_some(const std::vector<std::string_view>& names) {
  constexpr size_t kMost = 6;
  std::string text;
  const size_t shown = std::min(names.size(), kMost);
  for (size_t i = 0; i < shown; ++i) {
    if (i > 0) text += ", ";
    text += names[i];
  }
  if (names.size() > shown) text += " and " + std::to_string(names.size() - shown) + " more";
  return text.empty() ? "none" : text;
}

}  // namespace db

// Names of modules, parameters and types as users write them in options: comma-separated lists and
// patterns with '*'. Pure functions; [any-thread].
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace db {

// The items between commas, with surrounding whitespace removed; empty items are dropped.
std::vector<std::string> split_list(std::string_view text);

// Whether a dotted name matches a pattern: '*' matches any characters except dots ("blocks.*"
// matches every block but nothing inside it), "**" matches any characters.
bool matches(std::string_view pattern, std::string_view name);

// "a, b, c and 9 more": some existing names, for the message about one that does not exist.
std::string list_some(const std::vector<std::string_view>& names);

}  // namespace db

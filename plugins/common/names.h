// Names of modules, parameters and types as users write them in options: lists with commas,
// patterns with '*'. Pure functions; [any-thread].
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace db {

// The items between commas, without the blanks around them; empty ones are left out.
std::vector<std::string> split_list(std::string_view text);

// Whether a dotted name fits a pattern: '*' stands for any characters but dots (so that "blocks.*"
// is every block and not what is inside of it), "**" for any characters.
bool matches(std::string_view pattern, std::string_view name);

// "a, b, c and 9 more": some names that exist, for the message about one that does not.
std::string list_some(const std::vector<std::string_view>& names);

}  // namespace db

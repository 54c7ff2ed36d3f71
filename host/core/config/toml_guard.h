// Scans TOML before it is parsed: parser and tree are recursive, and hostile input ([[[[… or
// a.a.a.a…) would overflow the stack. Pure function.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace coupler {

constexpr size_t kMaxTomlBytes = size_t{1} << 20;
constexpr int kMaxTomlDepth = 64;

struct TextPosition {
  size_t line = 1;
  size_t column = 1;
};

// Where brackets, braces and dotted keys first nest deeper than max_depth. The result for invalid
// TOML is unspecified: the parser reports what is wrong with it.
std::optional<TextPosition> find_deep_nesting(std::string_view text, int max_depth = kMaxTomlDepth);

}  // namespace coupler

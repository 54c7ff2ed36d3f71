// What filters, tests and methods share: how they read their arguments, and Python's functions of
// strings. Plain functions; any thread. Do not depend on LibTorch.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "jinja/value.h"

namespace coupler::jinja {

struct Call {
  const std::string name;  // of what is called, for messages
  const Arguments& arguments;
  Budget& budget;

  // The argument at a position or with a name. Throws Problem if it is missing and there is no
  // `otherwise`.
  Value get(size_t position, std::string_view argument,
            const std::optional<Value>& otherwise = std::nullopt) const;
};

// As str.strip: white space, or these characters.
std::string stripped(std::string_view text, const Value& characters, bool left, bool right);
std::string capitalized(const std::string& text);
// count: the most replacements; below 0: all.
std::string replaced(const std::string& text, const std::string& from, const std::string& to,
                     int64_t count);
// Where leading white space ends, and where trailing white space begins, by Python's definition.
size_t python_blank_start(std::string_view text);
size_t python_blank_end(std::string_view text);

}  // namespace coupler::jinja

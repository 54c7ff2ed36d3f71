// An error's message without the hint.
#pragma once

#include <coupler/error.h>

#include <string>

namespace coupler::testing {

inline std::string first_line(const Error& error) {
  const std::string message = error.what();
  return message.substr(0, message.find('\n'));
}

}  // namespace coupler::testing

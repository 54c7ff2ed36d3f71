#include "base/name_pattern.h"

namespace coupler {

std::regex name_pattern(const std::string& pattern) {
  std::string text;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] == '*') {
      const bool any = i + 1 < pattern.size() && pattern[i + 1] == '*';
      text += any ? ".*" : "[^.]*";
      i += any ? 1 : 0;
    } else {
      text += std::string("\\^$.|?+()[]{}").find(pattern[i]) == std::string::npos ? "" : "\\";
      text += pattern[i];
    }
  }
  return std::regex(text);
}

}  // namespace coupler

#include "base/message.h"

namespace coupler {

std::string without_hint(const std::string& text) { return text.substr(0, text.find(kHintMark)); }

std::string hint_in(const std::string& text) {
  const size_t mark = text.find(kHintMark);
  return mark == std::string::npos ? "" : text.substr(mark + kHintMark.size());
}

}  // namespace coupler

#include "base/environment.h"

#include <cstdlib>

namespace coupler {

std::string environment_text(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

}  // namespace coupler

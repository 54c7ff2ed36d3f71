// Command lines as lists of words. Pure functions, [any-thread].
#pragma once

#include <string>
#include <vector>

namespace coupler {

using Words = std::vector<std::string>;

inline Words with(Words first, const Words& more) {
  first.insert(first.end(), more.begin(), more.end());
  return first;
}

}  // namespace coupler

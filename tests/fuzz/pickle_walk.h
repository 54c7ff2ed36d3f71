// For the fuzzers: visits everything in a pickle, as a program that converts one would.
#pragma once

#include "formats/pickle.h"

namespace coupler::fuzz {

// Calls `visit` for `value` and every value below it. Recursive; the tree's depth is capped.
template <typename Visit>
void walk(const pickle::Value& value, const Visit& visit) {
  visit(value);
  switch (value.kind()) {
    case pickle::Kind::kList:
    case pickle::Kind::kTuple:
    case pickle::Kind::kDict:
      for (const pickle::Value* item : value.items()) walk(*item, visit);
      break;
    default:
      break;
  }
}

}  // namespace coupler::fuzz

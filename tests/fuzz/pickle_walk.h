// Visits all that a pickle holds, as a program that converts one would, for the fuzzers.
#pragma once

#include "io/pickle.h"

namespace coupler::fuzz {

// Calls `visit` for every value below `value` and for itself. Recursive: a tree's depth is capped.
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

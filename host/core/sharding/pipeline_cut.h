// Cuts a chain of layers into stages. Pure functions of names and numbers, so that every rank with
// the same input finds the same cut.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace coupler {

// Index of each stage's first layer; begins[0] is 0. Stage s has layers [begins[s], begins[s + 1]).
using StageBegins = std::vector<size_t>;

// Each stage after the first begins at one of the named layers; the name of a module that contains
// layers ("2" of "2.0", "2.1") stands for its first one. Names may come in any order. Throws
// Error(kInvalidArgument) if there are not stages - 1 names; if a layer does not exist, listing the
// nearest name and all layers; if one is the first layer or is named twice.
StageBegins cut_at(const std::vector<std::string>& layers, const std::vector<std::string>& points,
                   int stages);

// The cut that minimizes the cost of the most expensive stage; among equal ones, the one whose
// costs are most even (the least sum of squares). Every stage has a layer. Throws
// Error(kInvalidArgument) if there are fewer layers than stages.
StageBegins balanced_cut(const std::vector<double>& costs, int stages);

}  // namespace coupler

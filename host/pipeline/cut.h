// Where a chain of layers is cut into stages. Pure functions of names and numbers, so that every
// rank that has the same ones finds the same cut.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace coupler {

// The first layer of each stage; begins[0] is 0. Stage s has the layers [begins[s], begins[s + 1]).
using StageBegins = std::vector<size_t>;

// Each stage after the first begins at the layer of that name; the name of a module that contains
// layers ("2" of "2.0", "2.1") stands for its first one. Names may come in any order. Throws
// Error(kInvalidArgument) where there are not stages - 1 of them; where one is no layer, naming the
// nearest and those that are; where one is the first layer, or comes twice.
StageBegins cut_at(const std::vector<std::string>& layers, const std::vector<std::string>& points,
                   int stages);

// The cut with the least cost of its most expensive stage; of several the one whose costs are the
// most even (the least sum of squares). Every stage has a layer. Throws Error(kInvalidArgument)
// where there are fewer layers than stages.
StageBegins balanced_cut(const std::vector<double>& costs, int stages);

}  // namespace coupler

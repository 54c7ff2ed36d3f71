// FlatLayout: where the parameters of a model that every rank holds whole are in flat memory: one
// group per dtype (or several of a limited size), in reverse order of registration, roughly the
// order in which gradients arrive. Pure function.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace coupler::sharding {

struct FlatParameter {
  int dtype = 0;  // any number that distinguishes dtypes; groups are in its order
  int64_t element_size = 4;
  int64_t numel = 0;
};

// One group. Offsets and counts are in elements.
struct FlatLayout {
  std::vector<size_t> parameters;  // in the order of their offsets
  std::vector<int64_t> offsets;
  int64_t numel = 0;  // padding included
  int64_t flags = 0;  // after the gradients of the last group: one per parameter of the model
};

// A group of two or more parameters has at most most_elements.
std::vector<FlatLayout> lay_out_flat(const std::vector<FlatParameter>& parameters,
                                     int64_t most_elements);

}  // namespace coupler::sharding

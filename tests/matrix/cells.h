// Cells of the operations matrix, and the choice of those that one run covers. Every rank makes the
// same choice. Pure functions.
#pragma once

#include <coupler/distributed_backend.h>

#include <cstdint>
#include <string>
#include <vector>

namespace coupler::matrix {

struct Cell {
  db_kind kind = 0;
  db_dtype dtype = 0;
  db_reduce reduce = 0;
  uint64_t count = 0;
  bool in_place = false;
  bool blocking = false;
};

enum class Cover {
  kPairs,  // every pair of two factors' values, chosen by the stored seed
  kMain,   // every operation, dtype, reduction and size, the large size for some dtypes
  kFull,   // everything
};

constexpr uint64_t kStoredSeed = 20240117;
constexpr uint64_t kPrime = 1009;
constexpr uint64_t kLarge = (1u << 20) + 1;

// Sorted by dtype and reduction, so that the contents of each pair are computed once.
std::vector<Cell> choose_cells(Cover cover, uint64_t seed);
std::string to_string(const Cell& cell);

}  // namespace coupler::matrix

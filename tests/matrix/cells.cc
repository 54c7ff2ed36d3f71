#include "cells.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <random>
#include <set>
#include <tuple>

#include "comm/flight_recorder.h"

namespace coupler::matrix {
namespace {

constexpr std::array<uint64_t, 4> kCounts = {0, 1, kPrime, kLarge};

// Every kind except SEND and RECV. Includes undefined combinations, which must be rejected.
std::vector<Cell> all_cells() {
  std::vector<Cell> cells;
  for (db_kind kind = DB_ALL_REDUCE; kind <= DB_BARRIER; ++kind) {
    for (db_dtype dtype = DB_I8; dtype <= DB_F8_E5M2; ++dtype) {
      for (db_reduce reduce = DB_SUM; reduce <= DB_BXOR; ++reduce) {
        if (!comm::is_reducing(kind) && reduce != DB_SUM) continue;
        for (const uint64_t count : kCounts) {
          for (const bool in_place : {false, true}) {
            for (const bool blocking : {false, true}) {
              if (kind == DB_BARRIER && (dtype != DB_I8 || count != 0 || in_place)) continue;
              cells.push_back(
                  {kind, dtype, comm::is_reducing(kind) ? reduce : 0, count, in_place, blocking});
            }
          }
        }
      }
    }
  }
  return cells;
}

bool is_main(const Cell& cell) {
  if (cell.count == kPrime) return true;
  if (cell.count != kLarge) return cell.in_place == cell.blocking;
  const bool few = cell.dtype == DB_F32 || cell.dtype == DB_BF16 || cell.dtype == DB_I64;
  return few && (cell.reduce == 0 || cell.reduce == DB_SUM) && cell.in_place == cell.blocking;
}

// The pairs of factor values that a cell covers, as numbers.
std::vector<uint64_t> pairs_of(const Cell& cell) {
  const std::array<uint64_t, 6> factors = {
      static_cast<uint64_t>(cell.kind),     static_cast<uint64_t>(cell.dtype),
      static_cast<uint64_t>(cell.reduce),   cell.count,
      static_cast<uint64_t>(cell.in_place), static_cast<uint64_t>(cell.blocking)};
  std::vector<uint64_t> pairs;
  for (size_t i = 0; i < factors.size(); ++i) {
    for (size_t j = i + 1; j < factors.size(); ++j) {
      pairs.push_back((i * 6 + j) << 56 | factors[i] << 28 | factors[j]);
    }
  }
  return pairs;
}

// Greedy over a shuffled order: a cell is taken if it adds a pair.
std::vector<Cell> cover_pairs(std::vector<Cell> cells, uint64_t seed) {
  std::mt19937_64 random(seed);
  for (size_t i = cells.size(); i > 1; --i) std::swap(cells[i - 1], cells[random() % i]);
  std::set<uint64_t> seen;
  std::vector<Cell> chosen;
  for (const Cell& cell : cells) {
    bool adds = false;
    for (const uint64_t pair : pairs_of(cell)) adds |= seen.insert(pair).second;
    if (adds) chosen.push_back(cell);
  }
  return chosen;
}

}  // namespace

std::vector<Cell> choose_cells(Cover cover, uint64_t seed) {
  std::vector<Cell> cells = all_cells();
  if (cover == Cover::kPairs) cells = cover_pairs(std::move(cells), seed);
  if (cover == Cover::kMain) {
    cells.erase(
        std::remove_if(cells.begin(), cells.end(), [](const Cell& cell) { return !is_main(cell); }),
        cells.end());
  }
  std::stable_sort(cells.begin(), cells.end(), [](const Cell& a, const Cell& b) {
    return std::tie(a.dtype, a.reduce) < std::tie(b.dtype, b.reduce);
  });
  return cells;
}

std::string to_string(const Cell& cell) {
  return fmt::format("{} {} {} x{} {} {}", comm::kind_name(cell.kind), comm::dtype_name(cell.dtype),
                     comm::reduce_name(cell.reduce), cell.count,
                     cell.in_place ? "in place" : "out of place",
                     cell.blocking ? "blocking" : "asynchronous");
}

}  // namespace coupler::matrix

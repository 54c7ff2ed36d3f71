// f16 and bf16 are combined in f32 and rounded, at each step or once at the end. Sums of arbitrary
// values differ from the exact sum by at most half a unit in the last place of the sum of the
// magnitudes, times the number of ranks.
#include <fmt/format.h>

#include <cmath>

#include "memory.h"
#include "rank.h"
#include "values.h"

namespace coupler::matrix {
namespace {

template <typename T>
void check_sums(comm::Communicator& communicator, db_dtype dtype, int mantissa_bits) {
  constexpr uint64_t kCount = 5003;
  const auto input = [&](int rank, uint64_t i) {
    const uint64_t random = mix(99, static_cast<uint64_t>(rank), i);
    return T::from(static_cast<double>(static_cast<int64_t>(random % 20001) - 10000) / 4097.0);
  };
  Values<T> values(kCount);
  for (uint64_t i = 0; i < kCount; ++i) values[i] = input(communicator.rank(), i);
  db_op op{};
  op.kind = DB_ALL_REDUCE;
  op.dtype = dtype;
  op.reduce = DB_SUM;
  op.send = op.recv = values.data();
  op.count = kCount;
  op.memory = memory_kind();
  if (!communicator.supports(op)) return;
  communicator.run(op);
  for (uint64_t i = 0; i < kCount; ++i) {
    double exact = 0, magnitude = 0;
    for (int rank = 0; rank < communicator.size(); ++rank) {
      exact += input(rank, i).value();
      magnitude += std::fabs(input(rank, i).value());
    }
    const double tolerance = communicator.size() * std::ldexp(magnitude, -mantissa_bits - 1);
    check(std::fabs(values[i].value() - exact) <= tolerance,
          fmt::format("sum {} is {}, exactly {}, tolerance {}", i, values[i].value(), exact,
                      tolerance));
  }
}

}  // namespace

int rounding(Rank& rank) {
  const auto communicator = rank.connect();
  check_sums<Half>(*communicator, DB_F16, 10);
  check_sums<BFloat>(*communicator, DB_BF16, 7);
  return 0;
}

}  // namespace coupler::matrix

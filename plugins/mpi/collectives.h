// Collectives: every collective of the ABI in terms of MPI calls, in pieces if that is faster or
// the counts exceed MPI's int. One thread at a time. Every rank must have the same options.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <vector>

#include "common/op.h"

namespace db::mpi {

struct Tuning {
  uint64_t all_reduce_chunk = 16 << 20;  // bytes; measured
  uint64_t reduce_scatter_chunk = 1 << 20;
  uint64_t exchange_chunk = 16 << 20;
  uint64_t max_elements = 1 << 30;  // per MPI call; lower only in tests
};

class Collectives {
 public:
  Collectives(MPI_Comm comm, int32_t rank, int32_t size, const Tuning& tuning)
      : comm_(comm), rank_(rank), size_(size), tuning_(tuning) {}

  // Performs op, which is not point-to-point. Returns an MPI error code.
  int run(const Op& op);

 private:
  int all_reduce(const Op& op);
  int broadcast(const Op& op);
  int reduce(const Op& op);
  int all_gather(const Op& op);
  int all_gather_v(const Op& op);
  int reduce_scatter(const Op& op);
  int all_to_all(const Op& op);
  int gather(const Op& op);
  int scatter(const Op& op);
  int broadcast_part(char* data, uint64_t count, const Op& op, int32_t root);
  // The number of elements per call, for at most the given bytes.
  uint64_t piece(const Op& op, uint64_t bytes) const;
  char* scratch(int which, uint64_t bytes);

  const MPI_Comm comm_;
  const int32_t rank_;
  const int32_t size_;
  const Tuning tuning_;
  std::vector<char> scratch_[2];
  std::vector<int> counts_, offsets_;
};

}  // namespace db::mpi

// Collectives: every collective of the ABI in terms of MPI calls, in pieces if that is faster or
// the counts exceed MPI's int. One thread at a time. Every rank must have the same options.
#pragma once

#include <coupler/distributed_backend.h>
#include <mpi.h>

#include <cstdint>
#include <vector>

#include "common/op.h"

namespace db::mpi {

// MPI's names for the ABI's data types and reductions, and data types for counts beyond int.
// Call make_reductions() once, after MPI_Init; afterwards everything is constant and [any-thread].

// The type in which elements are moved: fp8 and bool as bytes, f16 and bf16 as 16 bits.
MPI_Datatype datatype(db_dtype dtype);

// Creates the operations that MPI lacks (f16 and bf16, combined in float) or computes differently
// (sums of 8- and 16-bit integers). Returns an MPI error code.
int make_reductions();

// The operation that combines dtype by reduce; AVG and PREMUL_SUM combine as SUM. Only for
// combinations that is_reducible() allows.
MPI_Op reduction(db_dtype dtype, db_reduce reduce);

// The count and type for an MPI call on count elements: beyond limit elements, one element of a
// derived type, freed by the destructor (MPI keeps it for operations in flight).
class Extent {
 public:
  Extent(uint64_t count, MPI_Datatype element, uint64_t limit);
  ~Extent();
  Extent(const Extent&) = delete;
  Extent& operator=(const Extent&) = delete;

  int count() const { return count_; }
  MPI_Datatype type() const { return type_; }

 private:
  int count_;
  MPI_Datatype type_;
  bool derived_ = false;
};

struct Tuning {
  uint64_t all_reduce_chunk = 16 << 20;  // bytes; measured
  uint64_t reduce_scatter_chunk = 1 << 20;
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

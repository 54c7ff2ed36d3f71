// MPI's names for the ABI's data types and reductions, and data types for counts beyond int.
// Call make_reductions() once, after MPI_Init; afterwards everything is constant and [any-thread].
#pragma once

#include <coupler/distributed_backend.h>
#include <mpi.h>

#include <cstdint>

namespace db::mpi {

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

}  // namespace db::mpi

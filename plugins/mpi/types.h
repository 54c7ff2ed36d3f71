// MPI's names for the data types and reductions of the ABI, and data types for counts beyond int.
// make_reductions() once, after MPI_Init; then constant and [any-thread].
#pragma once

#include <coupler/distributed_backend.h>
#include <mpi.h>

#include <cstdint>

namespace db::mpi {

// The type whose elements are moved; the fp8 types and bool as bytes, f16 and bf16 as 16 bits.
MPI_Datatype datatype(db_dtype dtype);

// Creates the operations that MPI lacks (f16 and bf16, combined in float). An MPI error code.
int make_reductions();

// The operation that combines dtype by reduce; AVG and PREMUL_SUM combine by sum. Only for what
// is_reducible() allows.
MPI_Op reduction(db_dtype dtype, db_reduce reduce);

// A count and a type for count elements as an MPI call takes them: beyond limit elements, one
// element of a derived type. Frees it when it goes out of scope (MPI keeps what is under way).
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

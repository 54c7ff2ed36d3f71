#include "mpi/types.h"

#include "common/reduce.h"
#include "common/types.h"

namespace db::mpi {
namespace {

MPI_Op half_operations[2][DB_MAX] = {};  // f16 and bf16; indexed by db_reduce - 1
// i8, u8, i16 and u16, where Open MPI 4.1's vector code saturates instead of wrapping around.
MPI_Op narrow_sums[4] = {};

template <db_dtype kType, db_reduce kReduce>
void combine(void* in, void* inout, int* count, MPI_Datatype*) {
  static const ReduceFunction function = reduce_function(kType, kReduce);
  function(inout, inout, in, static_cast<size_t>(*count));
}

template <db_dtype kType>
int make_operations(MPI_Op* operations) {
  MPI_User_function* const functions[] = {combine<kType, DB_SUM>, combine<kType, DB_PROD>,
                                          combine<kType, DB_MIN>, combine<kType, DB_MAX>};
  for (int i = 0; i < DB_MAX; ++i)
    if (const int code = MPI_Op_create(functions[i], 1, &operations[i]); code != MPI_SUCCESS)
      return code;
  return MPI_SUCCESS;
}

int make_narrow_sums() {
  MPI_User_function* const functions[] = {combine<DB_I8, DB_SUM>, combine<DB_U8, DB_SUM>,
                                          combine<DB_I16, DB_SUM>, combine<DB_U16, DB_SUM>};
  for (int i = 0; i < 4; ++i)
    if (const int code = MPI_Op_create(functions[i], 1, &narrow_sums[i]); code != MPI_SUCCESS)
      return code;
  return MPI_SUCCESS;
}

}  // namespace

MPI_Datatype datatype(db_dtype dtype) {
  switch (dtype) {
    case DB_I8:
      return MPI_INT8_T;
    case DB_I16:
      return MPI_INT16_T;
    case DB_U16:
    case DB_F16:
    case DB_BF16:
      return MPI_UINT16_T;
    case DB_I32:
      return MPI_INT32_T;
    case DB_U32:
      return MPI_UINT32_T;
    case DB_I64:
      return MPI_INT64_T;
    case DB_U64:
      return MPI_UINT64_T;
    case DB_F32:
      return MPI_FLOAT;
    case DB_F64:
      return MPI_DOUBLE;
    default:
      return MPI_UINT8_T;
  }
}

int make_reductions() {
  int code = make_operations<DB_F16>(half_operations[0]);
  if (code == MPI_SUCCESS) code = make_operations<DB_BF16>(half_operations[1]);
  return code == MPI_SUCCESS ? make_narrow_sums() : code;
}

MPI_Op reduction(db_dtype dtype, db_reduce reduce) {
  if (reduce == DB_AVG || reduce == DB_PREMUL_SUM) reduce = DB_SUM;
  if (dtype == DB_F16) return half_operations[0][reduce - 1];
  if (dtype == DB_BF16) return half_operations[1][reduce - 1];
  if (reduce == DB_SUM && dtype >= DB_I8 && dtype <= DB_U16) return narrow_sums[dtype - DB_I8];
  const bool boolean = dtype == DB_BOOL;
  switch (reduce) {
    case DB_SUM:
      return boolean ? MPI_BOR : MPI_SUM;
    case DB_PROD:
      return boolean ? MPI_BAND : MPI_PROD;
    case DB_MIN:
      return boolean ? MPI_BAND : MPI_MIN;
    case DB_MAX:
      return boolean ? MPI_BOR : MPI_MAX;
    case DB_BAND:
      return MPI_BAND;
    case DB_BOR:
      return MPI_BOR;
    case DB_BXOR:
      return MPI_BXOR;
    default:
      return MPI_OP_NULL;
  }
}

Extent::Extent(uint64_t count, MPI_Datatype element, uint64_t limit)
    : count_(static_cast<int>(count)), type_(element) {
  if (count <= limit) return;
  // Whole blocks of limit elements, then the rest, combined into one element of a struct type.
  int size = 0;
  MPI_Type_size(element, &size);
  MPI_Datatype block = MPI_DATATYPE_NULL, blocks = MPI_DATATYPE_NULL;
  MPI_Type_contiguous(static_cast<int>(limit), element, &block);
  MPI_Type_contiguous(static_cast<int>(count / limit), block, &blocks);
  int lengths[2] = {1, static_cast<int>(count % limit)};
  MPI_Aint offsets[2] = {0, static_cast<MPI_Aint>(count / limit * limit) * size};
  MPI_Datatype types[2] = {blocks, element};
  MPI_Type_create_struct(2, lengths, offsets, types, &type_);
  MPI_Type_commit(&type_);
  MPI_Type_free(&blocks);
  MPI_Type_free(&block);
  count_ = 1;
  derived_ = true;
}

Extent::~Extent() {
  if (derived_) MPI_Type_free(&type_);
}

}  // namespace db::mpi

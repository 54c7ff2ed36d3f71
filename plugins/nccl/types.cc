#include "nccl/types.h"

#include <cstring>

#include "common/reduce.h"

namespace db::nccl {
namespace {

bool reduces(db_dtype dtype, db_reduce reduce) {
  if (!is_reducible(dtype, reduce)) return false;
  if (dtype == DB_I16 || dtype == DB_U16) return false;
  // On 0 and 1, max is "or" and min is "and"; "xor" has no such equivalent.
  if (dtype == DB_BOOL) return reduce != DB_BXOR;
  return reduce <= DB_PREMUL_SUM;
}

}  // namespace

int32_t score_of(const db_op& op) {
  if (!is_valid_kind(op.kind)) return 0;
  if (op.kind == DB_BARRIER) return 1;
  if (op.memory != DB_MEMORY_CUDA || dtype_size(op.dtype) == 0) return 0;
  if (is_reducing(op.kind) && !reduces(op.dtype, op.reduce)) return 0;
  switch (op.kind) {
    case DB_ALL_REDUCE:
    case DB_BROADCAST:
    case DB_REDUCE:
    case DB_ALL_GATHER:
    case DB_REDUCE_SCATTER:
    case DB_SEND:
    case DB_RECV:
      return 2;
    default:
      return 1;
  }
}

ncclDataType_t datatype(db_dtype dtype) {
  switch (dtype) {
    case DB_I8:
      return ncclInt8;
    case DB_I32:
      return ncclInt32;
    case DB_U32:
      return ncclUint32;
    case DB_I64:
      return ncclInt64;
    case DB_U64:
      return ncclUint64;
    case DB_F16:
      return ncclFloat16;
    case DB_BF16:
      return ncclBfloat16;
    case DB_F32:
      return ncclFloat32;
    case DB_F64:
      return ncclFloat64;
    default:  // u8 and bool
      return ncclUint8;
  }
}

ncclRedOp_t reduction(db_dtype dtype, db_reduce reduce) {
  if (dtype == DB_BOOL)
    return reduce == DB_SUM || reduce == DB_MAX || reduce == DB_BOR ? ncclMax : ncclMin;
  switch (reduce) {
    case DB_PROD:
      return ncclProd;
    case DB_MIN:
      return ncclMin;
    case DB_MAX:
      return ncclMax;
    case DB_AVG:
      return ncclAvg;
    default:
      return ncclSum;
  }
}

void write_scalar(db_dtype dtype, double scale, void* bytes) {
  const auto narrow = static_cast<float>(scale);
  const uint16_t half = dtype == DB_F16 ? float_to_f16(narrow) : float_to_bf16(narrow);
  if (dtype == DB_F64) {
    std::memcpy(bytes, &scale, sizeof(scale));
  } else if (dtype == DB_F32) {
    std::memcpy(bytes, &narrow, sizeof(narrow));
  } else {
    std::memcpy(bytes, &half, sizeof(half));
  }
}

}  // namespace db::nccl

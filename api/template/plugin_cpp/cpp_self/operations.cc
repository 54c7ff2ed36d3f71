#include "cpp_self/operations.h"

#include <bit>
#include <cmath>
#include <cstring>

namespace plugin {
namespace {

// f16 and bf16 to float and back, rounding to even.

float from_bf16(uint16_t half) {
  return std::bit_cast<float>(uint32_t{half} << 16);
}

uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float from_f16(uint16_t half) {
  const uint32_t sign = uint32_t{half & 0x8000u} << 16;
  const uint32_t magnitude = half & 0x7fffu;
  if (magnitude >= 0x7c00u)
    return std::bit_cast<float>(sign | 0x7f800000u |
                                (magnitude & 0x3ffu) << 13);
  // The exponent is shifted into place with f16's bias; the product corrects
  // the bias, also for subnormals.
  return std::bit_cast<float>(
      sign | std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude << 13) *
                                     0x1p112f));
}

uint16_t to_f16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u)
    return static_cast<uint16_t>(sign | 0x7e00u);  // not a number
  if (magnitude >= 0x477ff000u)
    return static_cast<uint16_t>(sign | 0x7c00u);  // infinity from 65520 on
  if (magnitude < 0x38800000u) {                   // below 2^-14: a subnormal
    // Between 0.5 and 1 a float's last bit is 2^-24, the unit of f16
    // subnormals, so the addition rounds to it.
    const float sum = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign |
                                 (std::bit_cast<uint32_t>(sum) - 0x3f000000u));
  }
  const uint32_t odd = (magnitude >> 13) & 1u;
  return static_cast<uint16_t>(
      sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
}

bool is_floating(db_dtype dtype) { return dtype >= DB_F16 && dtype <= DB_F64; }

bool reduces(db_kind kind) {
  return kind == DB_ALL_REDUCE || kind == DB_REDUCE ||
         kind == DB_REDUCE_SCATTER || kind == DB_REDUCE_SCATTER_V;
}

bool has_counts(db_kind kind) {
  return kind == DB_ALL_GATHER_V || kind == DB_REDUCE_SCATTER_V ||
         kind == DB_ALL_TO_ALL_V;
}

// DB_PREMUL_SUM: half types are scaled in float.
void scale(db_dtype dtype, void *data, uint64_t count, double factor) {
  const auto by = static_cast<float>(factor);
  for (uint64_t i = 0; i < count; ++i) {
    if (dtype == DB_F16) {
      auto &value = static_cast<uint16_t *>(data)[i];
      value = to_f16(from_f16(value) * by);
    } else if (dtype == DB_BF16) {
      auto &value = static_cast<uint16_t *>(data)[i];
      value = to_bf16(from_bf16(value) * by);
    } else if (dtype == DB_F32) {
      static_cast<float *>(data)[i] *= by;
    } else {  // DB_F64: is_supported() rejects all other types
      static_cast<double *>(data)[i] *= factor;
    }
  }
}

}  // namespace

bool is_message(const db_op &op) {
  return op.kind == DB_SEND || op.kind == DB_RECV;
}

uint64_t dtype_bytes(db_dtype dtype) {
  switch (dtype) {
    case DB_I8:
    case DB_U8:
    case DB_BOOL:
    case DB_F8_E4M3FN:
    case DB_F8_E5M2:
      return 1;
    case DB_I16:
    case DB_U16:
    case DB_F16:
    case DB_BF16:
      return 2;
    case DB_I32:
    case DB_U32:
    case DB_F32:
      return 4;
    case DB_I64:
    case DB_U64:
    case DB_F64:
      return 8;
    default:
      return 0;
  }
}

bool is_supported(const db_op &op) {
  if (op.kind < DB_ALL_REDUCE || op.kind > DB_RECV) return false;
  if (op.kind == DB_BARRIER) return true;
  if (dtype_bytes(op.dtype) == 0) return false;
  if (op.memory != DB_MEMORY_HOST && op.memory != DB_MEMORY_HOST_PINNED)
    return false;
  if (!reduces(op.kind)) return true;
  if (op.dtype == DB_F8_E4M3FN || op.dtype == DB_F8_E5M2)
    return false;  // moved, not combined
  switch (op.reduce) {
    case DB_SUM:
    case DB_PROD:
    case DB_MIN:
    case DB_MAX:
      return true;
    case DB_AVG:
      return op.dtype != DB_BOOL;
    case DB_PREMUL_SUM:
      return is_floating(op.dtype);
    case DB_BAND:
    case DB_BOR:
    case DB_BXOR:
      return !is_floating(op.dtype);
    default:
      return false;
  }
}

const char *argument_problem(const db_op &op) {
  uint64_t count = op.count;
  if (op.kind == DB_BARRIER) return nullptr;
  if (op.root_or_peer != 0) return "root_or_peer must be 0, the only rank";
  if (has_counts(op.kind)) {
    if (op.recv_counts == nullptr) return "recv_counts is NULL";
    count = op.recv_counts[0];
    if (op.kind == DB_ALL_TO_ALL_V) {
      if (op.send_counts == nullptr) return "send_counts is NULL";
      if (op.send_counts[0] != count)
        return "send_counts and recv_counts differ";
    }
  }
  if (count == 0) return nullptr;
  const uint64_t bytes = dtype_bytes(op.dtype);
  if (bytes == 0) return "dtype is unknown";
  if (count > UINT64_MAX / bytes) return "the count overflows";
  if (op.kind != DB_RECV && op.send == nullptr) return "send is NULL";
  if (op.kind != DB_SEND && op.recv == nullptr) return "recv is NULL";
  return nullptr;
}

void perform(const db_op &op) {
  const uint64_t count = has_counts(op.kind) ? op.recv_counts[0] : op.count;
  if (op.kind == DB_BARRIER || count == 0) return;
  if (op.recv != op.send)
    std::memmove(op.recv, op.send, count * dtype_bytes(op.dtype));
  if (reduces(op.kind) && op.reduce == DB_PREMUL_SUM)
    scale(op.dtype, op.recv, count, op.scale);
}

}  // namespace plugin

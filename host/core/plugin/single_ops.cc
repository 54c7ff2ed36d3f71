#include "plugin/single_ops.h"

#include <bit>
#include <cmath>
#include <cstring>

namespace coupler {
namespace {

bool is_floating(db_dtype dtype) { return dtype >= DB_F16 && dtype <= DB_F64; }
bool is_fp8(db_dtype dtype) { return dtype == DB_F8_E4M3FN || dtype == DB_F8_E5M2; }

bool reduces(db_kind kind) {
  return kind == DB_ALL_REDUCE || kind == DB_REDUCE || kind == DB_REDUCE_SCATTER ||
         kind == DB_REDUCE_SCATTER_V;
}

float from_bf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float from_f16(uint16_t bits) {
  const int exponent = (bits >> 10) & 0x1f;
  const auto fraction = static_cast<float>(bits & 0x3ff);
  float value = 0;
  if (exponent == 31) {
    value = fraction == 0 ? INFINITY : NAN;
  } else if (exponent == 0) {
    value = std::ldexp(fraction, -24);
  } else {
    value = std::ldexp(fraction + 1024, exponent - 25);
  }
  return (bits & 0x8000u) != 0 ? -value : value;
}

uint16_t to_f16(float value) {
  const auto sign = static_cast<uint16_t>(std::signbit(value) ? 0x8000u : 0u);
  const float size = std::fabs(value);
  if (size == 0) return sign;
  if (std::isnan(value)) return sign | 0x7e00u;
  if (size >= 65520.0f) return sign | 0x7c00u;  // rounds past the largest number
  int exponent = 0;
  std::frexp(size, &exponent);
  // One unit in the last place is 2^(exponent - 11), at least the smallest subnormal 2^-24.
  const int unit = exponent - 11 < -24 ? -24 : exponent - 11;
  const auto steps = static_cast<uint32_t>(std::nearbyint(std::ldexp(size, -unit)));
  // With the exponent's bias a carry out of the fraction lands where it belongs.
  return static_cast<uint16_t>(sign | (static_cast<uint32_t>(unit + 24) * 1024u + steps));
}

template <typename T>
void scale_native(void* data, uint64_t count, double scale) {
  auto* values = static_cast<T*>(data);
  for (uint64_t i = 0; i < count; ++i) values[i] *= static_cast<T>(scale);
}

template <typename From, typename To>
void scale_half(void* data, uint64_t count, double scale, From from, To to) {
  auto* values = static_cast<uint16_t*>(data);
  for (uint64_t i = 0; i < count; ++i) values[i] = to(from(values[i]) * static_cast<float>(scale));
}

void scale_in_place(db_dtype dtype, void* data, uint64_t count, double scale) {
  switch (dtype) {
    case DB_F16:
      return scale_half(data, count, scale, from_f16, to_f16);
    case DB_BF16:
      return scale_half(data, count, scale, from_bf16, to_bf16);
    case DB_F32:
      return scale_native<float>(data, count, scale);
    case DB_F64:
      return scale_native<double>(data, count, scale);
    default:
      return;  // self_supports() admits no other type
  }
}

}  // namespace

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

bool is_point_to_point(db_kind kind) { return kind == DB_SEND || kind == DB_RECV; }

bool self_supports(const db_op& op) {
  if (op.kind < DB_ALL_REDUCE || op.kind > DB_RECV) return false;
  if (op.kind == DB_BARRIER) return true;
  if (dtype_bytes(op.dtype) == 0) return false;
  if (op.memory != DB_MEMORY_HOST && op.memory != DB_MEMORY_HOST_PINNED) return false;
  if (!reduces(op.kind)) return true;
  // As in every transport: what cannot be combined with a second rank is rejected with one, too.
  if (is_fp8(op.dtype)) return false;
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

uint64_t self_elements(const db_op& op) {
  switch (op.kind) {
    case DB_BARRIER:
      return 0;
    case DB_ALL_GATHER_V:
    case DB_REDUCE_SCATTER_V:
    case DB_ALL_TO_ALL_V:
      return op.recv_counts[0];
    default:
      return op.count;
  }
}

const char* self_argument_problem(const db_op& op) {
  if (op.root_or_peer != 0) return "root_or_peer is not 0, the only rank";
  const bool by_counts =
      op.kind == DB_ALL_GATHER_V || op.kind == DB_REDUCE_SCATTER_V || op.kind == DB_ALL_TO_ALL_V;
  if (by_counts && op.recv_counts == nullptr) return "recv_counts is NULL";
  if (op.kind == DB_ALL_TO_ALL_V) {
    if (op.send_counts == nullptr) return "send_counts is NULL";
    if (op.send_counts[0] != op.recv_counts[0]) return "send_counts and recv_counts differ";
  }
  const uint64_t count = self_elements(op);
  if (op.kind == DB_BARRIER || count == 0) return nullptr;
  const uint64_t bytes = dtype_bytes(op.dtype);
  if (bytes == 0) return "dtype is unknown";
  if (count > UINT64_MAX / bytes) return "the count overflows";
  if (op.kind != DB_RECV && op.send == nullptr) return "send is NULL";
  if (op.kind != DB_SEND && op.recv == nullptr) return "recv is NULL";
  return nullptr;
}

void self_perform(const db_op& op) {
  const uint64_t count = self_elements(op);
  if (count == 0) return;
  if (op.recv != op.send) std::memmove(op.recv, op.send, count * dtype_bytes(op.dtype));
  if (reduces(op.kind) && op.reduce == DB_PREMUL_SUM) {
    scale_in_place(op.dtype, op.recv, count, op.scale);
  }
}

}  // namespace coupler

#include "c_self/operations.h"

#include <string.h>

static int is_floating(db_dtype dtype) { return dtype >= DB_F16 && dtype <= DB_F64; }

static int reduces(db_kind kind) {
  return kind == DB_ALL_REDUCE || kind == DB_REDUCE || kind == DB_REDUCE_SCATTER ||
         kind == DB_REDUCE_SCATTER_V;
}

static int has_counts(db_kind kind) {
  return kind == DB_ALL_GATHER_V || kind == DB_REDUCE_SCATTER_V || kind == DB_ALL_TO_ALL_V;
}

int is_message(const db_op* op) { return op->kind == DB_SEND || op->kind == DB_RECV; }

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

int is_supported(const db_op* op) {
  if (op->kind < DB_ALL_REDUCE || op->kind > DB_RECV) return 0;
  if (op->kind == DB_BARRIER) return 1;
  if (dtype_bytes(op->dtype) == 0) return 0;
  if (op->memory != DB_MEMORY_HOST && op->memory != DB_MEMORY_HOST_PINNED) return 0;
  if (!reduces(op->kind)) return 1;
  if (op->dtype == DB_F8_E4M3FN || op->dtype == DB_F8_E5M2) return 0; /* moved, not combined */
  switch (op->reduce) {
    case DB_SUM:
    case DB_PROD:
    case DB_MIN:
    case DB_MAX:
      return 1;
    case DB_AVG:
      return op->dtype != DB_BOOL;
    case DB_PREMUL_SUM:
      return is_floating(op->dtype);
    case DB_BAND:
    case DB_BOR:
    case DB_BXOR:
      return !is_floating(op->dtype);
    default:
      return 0;
  }
}

const char* argument_problem(const db_op* op) {
  uint64_t count = op->count;
  if (op->kind == DB_BARRIER) return NULL;
  if (op->root_or_peer != 0) return "root_or_peer must be 0, the only rank";
  if (has_counts(op->kind)) {
    if (op->recv_counts == NULL) return "recv_counts is NULL";
    count = op->recv_counts[0];
    if (op->kind == DB_ALL_TO_ALL_V) {
      if (op->send_counts == NULL) return "send_counts is NULL";
      if (op->send_counts[0] != count) return "send_counts and recv_counts differ";
    }
  }
  if (count == 0) return NULL;
  if (count > UINT64_MAX / dtype_bytes(op->dtype)) return "the count overflows";
  if (op->kind != DB_RECV && op->send == NULL) return "send is NULL";
  if (op->kind != DB_SEND && op->recv == NULL) return "recv is NULL";
  return NULL;
}

/* ---- DB_PREMUL_SUM: half types are scaled in float and rounded to even. --- */

static float bits_float(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

static uint32_t float_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

static float from_bf16(uint16_t half) { return bits_float((uint32_t)half << 16); }

static uint16_t to_bf16(float value) {
  const uint32_t bits = float_bits(value);
  if (value != value) return (uint16_t)((bits >> 16) | 0x40u);
  return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

static float from_f16(uint16_t half) {
  const uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
  const uint32_t magnitude = half & 0x7fffu;
  if (magnitude >= 0x7c00u) return bits_float(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  /* The exponent is in place with f16's bias; the product corrects it, also for subnormals. */
  return bits_float(sign | float_bits(bits_float(magnitude << 13) * 0x1p112f));
}

static uint16_t to_f16(float value) {
  const uint32_t bits = float_bits(value);
  const uint16_t sign = (uint16_t)((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t odd;
  if (magnitude > 0x7f800000u) return sign | 0x7e00u;  /* not a number */
  if (magnitude >= 0x477ff000u) return sign | 0x7c00u; /* infinity from 65520 on */
  if (magnitude < 0x38800000u) {                       /* below 2^-14: a subnormal */
    /* From 0.5 to 1, a float's last bit is 2^-24, the unit of f16 subnormals: adding rounds. */
    return (uint16_t)(sign | (float_bits(bits_float(magnitude) + 0.5f) - 0x3f000000u));
  }
  odd = (magnitude >> 13) & 1u;
  return (uint16_t)(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
}

static void scale(db_dtype dtype, void* data, uint64_t count, double factor) {
  uint64_t i;
  for (i = 0; i < count; ++i) {
    switch (dtype) {
      case DB_F16:
        ((uint16_t*)data)[i] = to_f16(from_f16(((uint16_t*)data)[i]) * (float)factor);
        break;
      case DB_BF16:
        ((uint16_t*)data)[i] = to_bf16(from_bf16(((uint16_t*)data)[i]) * (float)factor);
        break;
      case DB_F32:
        ((float*)data)[i] *= (float)factor;
        break;
      default: /* DB_F64: is_supported() rejects all other types */
        ((double*)data)[i] *= factor;
        break;
    }
  }
}

void perform(const db_op* op) {
  const uint64_t count = has_counts(op->kind) ? op->recv_counts[0] : op->count;
  if (op->kind == DB_BARRIER || count == 0) return;
  if (op->recv != op->send) memmove(op->recv, op->send, count * dtype_bytes(op->dtype));
  if (reduces(op->kind) && op->reduce == DB_PREMUL_SUM) {
    scale(op->dtype, op->recv, count, op->scale);
  }
}

#include "common/types.h"

#include <array>

namespace db {
namespace {

struct Type {
  const char* name;
  uint8_t size;
  enum Class : uint8_t { kNone, kInteger, kFloating, kBool, kBytes } kind;
};

constexpr std::array<Type, 16> kTypes = {{{"dtype?", 0, Type::kNone},
                                          {"i8", 1, Type::kInteger},
                                          {"u8", 1, Type::kInteger},
                                          {"i16", 2, Type::kInteger},
                                          {"u16", 2, Type::kInteger},
                                          {"i32", 4, Type::kInteger},
                                          {"u32", 4, Type::kInteger},
                                          {"i64", 8, Type::kInteger},
                                          {"u64", 8, Type::kInteger},
                                          {"f16", 2, Type::kFloating},
                                          {"bf16", 2, Type::kFloating},
                                          {"f32", 4, Type::kFloating},
                                          {"f64", 8, Type::kFloating},
                                          {"bool", 1, Type::kBool},
                                          {"f8_e4m3fn", 1, Type::kBytes},
                                          {"f8_e5m2", 1, Type::kBytes}}};

constexpr std::array<const char*, 10> kReduces = {
    {"reduce?", "sum", "prod", "min", "max", "avg", "premul_sum", "band", "bor", "bxor"}};

constexpr std::array<const char*, 15> kKinds = {{"kind?", "all_reduce", "broadcast", "reduce",
                                                 "all_gather", "all_gather_v", "reduce_scatter",
                                                 "reduce_scatter_v", "all_to_all", "all_to_all_v",
                                                 "gather", "scatter", "barrier", "send", "recv"}};

// The entry at value, or the first entry, which stands for an invalid value.
template <class Table>
const typename Table::value_type& entry(const Table& table, int32_t value) {
  const bool valid = value > 0 && static_cast<size_t>(value) < table.size();
  return table[valid ? static_cast<size_t>(value) : 0];
}

}  // namespace

uint64_t dtype_size(db_dtype dtype) { return entry(kTypes, dtype).size; }
const char* dtype_name(db_dtype dtype) { return entry(kTypes, dtype).name; }
const char* reduce_name(db_reduce reduce) { return entry(kReduces, reduce); }
const char* kind_name(db_kind kind) { return entry(kKinds, kind); }
bool is_valid_kind(db_kind kind) { return kind >= DB_ALL_REDUCE && kind <= DB_RECV; }
bool is_floating(db_dtype dtype) { return entry(kTypes, dtype).kind == Type::kFloating; }

bool is_reducing(db_kind kind) {
  return kind == DB_ALL_REDUCE || kind == DB_REDUCE || kind == DB_REDUCE_SCATTER ||
         kind == DB_REDUCE_SCATTER_V;
}

bool is_rooted(db_kind kind) {
  return kind == DB_BROADCAST || kind == DB_REDUCE || kind == DB_GATHER || kind == DB_SCATTER;
}

bool is_point_to_point(db_kind kind) { return kind == DB_SEND || kind == DB_RECV; }

bool is_reducible(db_dtype dtype, db_reduce reduce) {
  if (reduce < DB_SUM || reduce > DB_BXOR) return false;
  switch (entry(kTypes, dtype).kind) {
    case Type::kInteger:
      return reduce != DB_PREMUL_SUM;
    case Type::kFloating:
      return reduce <= DB_PREMUL_SUM;
    case Type::kBool:
      return reduce != DB_AVG && reduce != DB_PREMUL_SUM;
    default:
      return false;
  }
}

int32_t host_supports(const db_op& op) {
  if (!is_valid_kind(op.kind)) return 0;
  if (op.kind == DB_BARRIER) return 1;
  if (op.memory != DB_MEMORY_HOST && op.memory != DB_MEMORY_HOST_PINNED) return 0;
  if (dtype_size(op.dtype) == 0) return 0;
  return !is_reducing(op.kind) || is_reducible(op.dtype, op.reduce) ? 1 : 0;
}

}  // namespace db

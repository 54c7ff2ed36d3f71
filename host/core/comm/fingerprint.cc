#include "comm/fingerprint.h"

#include <fmt/format.h>

#include <array>

namespace coupler {
namespace {

constexpr std::array<std::string_view, 15> kKinds = {
    "operation",    "all_reduce",     "broadcast",        "reduce",     "all_gather",
    "all_gather_v", "reduce_scatter", "reduce_scatter_v", "all_to_all", "all_to_all_v",
    "gather",       "scatter",        "barrier",          "send",       "recv"};
constexpr std::array<std::string_view, 16> kDtypes = {
    "untyped", "i8",  "u8",   "i16", "u16", "i32",  "u32",       "i64",
    "u64",     "f16", "bf16", "f32", "f64", "bool", "f8_e4m3fn", "f8_e5m2"};
constexpr std::array<uint64_t, 16> kSizes = {0, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 1, 1, 1};
constexpr std::array<std::string_view, 10> kReductions = {
    "", "sum", "prod", "min", "max", "avg", "premul_sum", "band", "bor", "bxor"};

template <typename T, size_t N>
T at_or(const std::array<T, N>& table, int32_t index, T otherwise) {
  return index >= 0 && static_cast<size_t>(index) < N ? table[static_cast<size_t>(index)]
                                                      : otherwise;
}

uint64_t pack_operation(int32_t kind, int32_t dtype, int32_t reduce, int32_t root) {
  return (static_cast<uint64_t>(kind) & 0xff) | (static_cast<uint64_t>(dtype) & 0xff) << 8 |
         (static_cast<uint64_t>(reduce) & 0xff) << 16 |
         static_cast<uint64_t>(static_cast<uint32_t>(root)) << 32;
}

void add_counts(const uint64_t* counts, int world, Fingerprint& result) {
  uint64_t hash = static_cast<uint64_t>(world);
  for (int rank = 0; rank < world; ++rank) {
    hash = (hash ^ counts[rank]) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 31;
    result.shown += counts[rank];
  }
  result.size = hash;
}

}  // namespace

std::string_view kind_name(db_kind kind) {
  return kind == kSplitKind ? "split" : at_or(kKinds, kind, kKinds[0]);
}
std::string_view dtype_name(db_dtype dtype) { return at_or(kDtypes, dtype, kDtypes[0]); }
std::string_view reduce_name(db_reduce reduce) {
  return at_or(kReductions, reduce, kReductions[0]);
}
uint64_t dtype_size(db_dtype dtype) { return at_or(kSizes, dtype, uint64_t{0}); }

bool is_reducing(db_kind kind) {
  return kind == DB_ALL_REDUCE || kind == DB_REDUCE || kind == DB_REDUCE_SCATTER ||
         kind == DB_REDUCE_SCATTER_V;
}
bool is_rooted(db_kind kind) {
  return kind == DB_BROADCAST || kind == DB_REDUCE || kind == DB_GATHER || kind == DB_SCATTER;
}
bool is_pairwise(db_kind kind) { return kind == DB_SEND || kind == DB_RECV; }

Fingerprint fingerprint_of(const db_op& op, int world) {
  Fingerprint result;
  if (op.kind == DB_BARRIER) {
    result.what = pack_operation(op.kind, 0, 0, 0);
    return result;
  }
  int32_t root = 0;
  if (is_rooted(op.kind)) {
    root = op.root_or_peer;
  } else if (is_pairwise(op.kind)) {
    root = op.tag;
  }
  result.what = pack_operation(op.kind, op.dtype, is_reducing(op.kind) ? op.reduce : 0, root);
  switch (op.kind) {
    case DB_ALL_GATHER_V:
    case DB_REDUCE_SCATTER_V:
      add_counts(op.recv_counts, world, result);
      break;
    case DB_ALL_TO_ALL_V:
      for (int rank = 0; rank < world; ++rank) result.shown += op.send_counts[rank];
      break;
    default:
      result.size = result.shown = op.count;
  }
  return result;
}

Fingerprint split_fingerprint(std::string_view name) {
  Fingerprint result;
  result.what = pack_operation(kSplitKind, 0, 0, 0);
  result.size = 14695981039346656037u;  // FNV-1a of the name
  for (char c : name) result.size = (result.size ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return result;
}

std::string describe(const Fingerprint& operation) {
  const db_kind kind = operation.kind();
  std::string text(kind_name(kind));
  if (kind == DB_BARRIER || kind == kSplitKind) return text;
  text += fmt::format(" {} x{}", dtype_name(operation.dtype()), operation.shown);
  if (is_reducing(kind)) text += fmt::format(" {}", reduce_name(operation.reduce()));
  if (is_rooted(kind)) {
    const bool spreads = kind == DB_BROADCAST || kind == DB_SCATTER;
    text += fmt::format(" {} rank {}", spreads ? "from" : "to", operation.root());
  } else if (is_pairwise(kind)) {
    text += fmt::format(" tag {}", operation.root());
  }
  return text;
}

}  // namespace coupler

#include "common/fingerprint.h"

namespace db {
namespace {

uint64_t pack_what(const Op& op) {
  const uint64_t reduce = is_reducing(op.kind) ? static_cast<uint64_t>(op.reduce) : 0;
  const uint64_t root = is_rooted(op.kind) ? static_cast<uint64_t>(op.root_or_peer) : 0;
  const uint64_t dtype = op.kind == DB_BARRIER ? 0 : static_cast<uint64_t>(op.dtype);
  return static_cast<uint64_t>(op.kind) | dtype << 8 | reduce << 16 | root << 32;
}

uint64_t pack_size(const Op& op, int32_t ranks) {
  if (op.kind == DB_ALL_TO_ALL_V) return 0;  // its counts differ between ranks
  if (op.recv_counts == nullptr) return op.count;
  uint64_t hash = 0;
  for (int32_t i = 0; i < ranks; ++i) hash = (hash ^ op.recv_counts[i]) * 0x9E3779B97F4A7C15u + 1;
  return hash;
}

}  // namespace

Fingerprint fingerprint(const Op& op, int32_t ranks) {
  return {pack_what(op), pack_size(op, ranks)};
}

std::string describe(const Fingerprint& called) {
  const auto [what, size] = called;
  const auto kind = static_cast<db_kind>(what & 0xff);
  std::string text = kind_name(kind);
  if (kind == DB_BARRIER) return text;
  const char* const dtype = dtype_name(static_cast<db_dtype>(what >> 8 & 0xff));
  const bool many = kind == DB_ALL_GATHER_V || kind == DB_REDUCE_SCATTER_V;
  if (many)
    text += " of " + std::string(dtype) + " (hash of the counts " + std::to_string(size) + ")";
  else if (kind == DB_ALL_TO_ALL_V)
    text += " of " + std::string(dtype);
  else
    text += " of " + std::to_string(size) + " " + dtype;
  if (is_reducing(kind))
    text += std::string(", ") + reduce_name(static_cast<db_reduce>(what >> 16 & 0xff));
  if (is_rooted(kind)) text += ", root " + std::to_string(what >> 32);
  return text;
}

Failure disagreement(uint64_t number, int32_t rank, const Fingerprint& called, int32_t other,
                     const Fingerprint& theirs) {
  return Failure::make(DB_ERR_MISMATCH,
                       "the ranks disagree on collective operation " + std::to_string(number) +
                           ": rank " + std::to_string(rank) + " called " + describe(called) +
                           ", rank " + std::to_string(other) + " called " + describe(theirs),
                       DB_ERROR_COMM_DEAD, other);
}

}  // namespace db

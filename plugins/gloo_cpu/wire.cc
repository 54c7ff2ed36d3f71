#include "gloo_cpu/wire.h"

#include "common/types.h"

namespace db::gloo_cpu {
namespace {

uint64_t hash(const uint64_t* counts, int32_t size) {
  uint64_t value = 14695981039346656037ULL;  // FNV-1a over the numbers
  for (int32_t i = 0; i < size; ++i) value = (value ^ counts[i]) * 1099511628211ULL;
  return value;
}

bool shares_counts(db_kind kind) { return kind == DB_ALL_GATHER_V || kind == DB_REDUCE_SCATTER_V; }

}  // namespace

Header make_header(const Op& op, int32_t size) {
  Header header;
  header.kind = static_cast<uint16_t>(op.kind);
  header.dtype = static_cast<uint8_t>(op.dtype);
  header.reduce = static_cast<uint8_t>(op.reduce);
  if (is_rooted(op.kind)) header.root_or_tag = op.root_or_peer;
  if (is_point_to_point(op.kind)) {
    header.kind = DB_SEND;  // both ends describe the same message
    header.root_or_tag = op.tag;
  }
  header.count = shares_counts(op.kind) ? hash(op.recv_counts, size) : op.count;
  return header;
}

std::string describe(const Header& header) {
  if (header.magic != Header::kMagic) return "bytes that are not a message of this backend";
  std::string text = kind_name(header.kind);
  if (header.kind != DB_BARRIER) {
    if (shares_counts(header.kind) || header.kind == DB_ALL_TO_ALL_V) {
      text += " of " + std::to_string(header.bytes) + " bytes (counts hash " +
              std::to_string(header.count % 1000000) + ") " + dtype_name(header.dtype);
    } else {
      text += " of " + std::to_string(header.count) + " " + dtype_name(header.dtype);
    }
  }
  if (header.reduce != 0) text += std::string(" (") + reduce_name(header.reduce) + ")";
  if (is_rooted(header.kind)) text += " with root " + std::to_string(header.root_or_tag);
  if (header.kind == DB_SEND) text += " with tag " + std::to_string(header.root_or_tag);
  return text + ", number " + std::to_string(header.sequence);
}

}  // namespace db::gloo_cpu

#include "common/op.h"

#include <time.h>

#include <algorithm>
#include <array>
#include <exception>
#include <new>
#include <numeric>
#include <utility>

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

Failure invalid(const Op& op, const std::string& what) {
  return Failure::invalid(std::string(kind_name(op.kind)) + ": " + what);
}

// The elements of all parts, of which counts has the sizes (NULL: op.count each). False on
// overflow.
bool add_parts(const Op& op, const uint64_t* counts, int32_t size, uint64_t* total) {
  if (counts == nullptr)
    return !__builtin_mul_overflow(op.count, static_cast<uint64_t>(size), total);
  for (int32_t i = 0; i < size; ++i)
    if (__builtin_add_overflow(*total, counts[i], total)) return false;
  return true;
}

bool needs_recv_counts(db_kind kind) {
  return kind == DB_ALL_GATHER_V || kind == DB_REDUCE_SCATTER_V || kind == DB_ALL_TO_ALL_V;
}

struct Sizes {
  uint64_t send = 0, recv = 0;
};

// What this rank sends and receives, in elements, as in the table at db_op. all: the sums over all
// parts.
Sizes sizes_of(const Op& op, int32_t rank, const Sizes& all) {
  const uint64_t count = op.count;
  const uint64_t part = part_size(op, op.recv_counts, rank);
  const bool root = op.root_or_peer == rank;
  switch (op.kind) {
    case DB_ALL_REDUCE:
      return {count, count};
    case DB_BROADCAST:  // the root fills its own recv as well
      return {root ? count : 0, count};
    case DB_REDUCE:
      return {count, root ? count : 0};
    case DB_ALL_GATHER:
    case DB_ALL_GATHER_V:
      return {part, all.recv};
    case DB_REDUCE_SCATTER:
    case DB_REDUCE_SCATTER_V:
      return {all.recv, part};
    case DB_ALL_TO_ALL:
    case DB_ALL_TO_ALL_V:
      return all;
    case DB_GATHER:
      return {count, root ? all.recv : 0};
    case DB_SCATTER:
      return {root ? all.recv : 0, count};
    case DB_SEND:
      return {count, 0};
    case DB_RECV:
      return {0, count};
    default:
      return {};
  }
}

// False on overflow.
bool set_sizes(Op* op, int32_t rank, int32_t size) {
  Sizes all;
  if (!add_parts(*op, op->send_counts, size, &all.send) ||
      !add_parts(*op, op->recv_counts, size, &all.recv))
    return false;
  const Sizes sizes = sizes_of(*op, rank, all);
  op->send_size = sizes.send;
  op->recv_size = sizes.recv;
  uint64_t bytes = 0;
  return !__builtin_mul_overflow(op->send_size, op->element, &bytes) &&
         !__builtin_mul_overflow(op->recv_size, op->element, &bytes);
}

// Where the other buffer lies in the in-place form of op: offsets in bytes into send and recv.
struct InPlace {
  uint64_t send_offset = 0;  // of recv inside send
  uint64_t recv_offset = 0;  // of send inside recv
};

InPlace in_place_form(const Op& op, int32_t rank) {
  const uint64_t part = part_offset(op, op.recv_counts, rank);
  switch (op.kind) {
    case DB_ALL_GATHER:
    case DB_ALL_GATHER_V:
    case DB_GATHER:
      return {0, part};
    case DB_REDUCE_SCATTER:
    case DB_REDUCE_SCATTER_V:
    case DB_SCATTER:
      return {part, 0};
    default:
      return {};
  }
}

Failure check_buffers(Op* op, int32_t rank, int32_t size) {
  // Two ranks detect a mismatch when they exchange messages; a rank's own part is checked here.
  const auto self = static_cast<size_t>(rank);
  if (op->kind == DB_ALL_TO_ALL_V && op->send_counts[self] != op->recv_counts[self])
    return invalid(*op, "this rank (" + std::to_string(rank) + ") sends itself " +
                            std::to_string(op->send_counts[self]) +
                            " elements (send_counts), but receives " +
                            std::to_string(op->recv_counts[self]) + " (recv_counts)");
  const auto send = reinterpret_cast<uintptr_t>(op->send);
  const auto recv = reinterpret_cast<uintptr_t>(op->recv);
  const struct {
    const char* name;
    uintptr_t address;
    uint64_t elements;
  } buffers[] = {{"send", send, op->send_size}, {"recv", recv, op->recv_size}};
  for (const auto& buffer : buffers) {
    if (buffer.elements == 0) continue;
    if (buffer.address == 0)
      return invalid(*op, std::string(buffer.name) + " is NULL, but the operation needs " +
                              std::to_string(buffer.elements) + " elements there");
    if (buffer.address % op->element != 0)
      return invalid(*op, std::string(buffer.name) + " is not aligned to the " +
                              std::to_string(op->element) + " bytes of " + dtype_name(op->dtype));
  }
  if (op->send_size == 0 || op->recv_size == 0) return {};
  const InPlace form = in_place_form(*op, rank);
  op->in_place = send + form.send_offset == recv + form.recv_offset;
  if (op->in_place) {
    for (int32_t i = 0; op->kind == DB_ALL_TO_ALL_V && i < size; ++i)
      if (op->send_counts[i] != op->recv_counts[i])
        return invalid(
            *op, "an in-place operation needs equal send_counts and recv_counts, but for rank " +
                     std::to_string(i) + " they are " + std::to_string(op->send_counts[i]) +
                     " and " + std::to_string(op->recv_counts[i]));
    return {};
  }
  if (send < recv + op->recv_size * op->element && recv < send + op->send_size * op->element)
    return invalid(*op, "send and recv overlap, but not in the operation's in-place form");
  return {};
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

uint64_t part_offset(const Op& op, const uint64_t* counts, int32_t rank) {
  const uint64_t elements = counts != nullptr ? std::accumulate(counts, counts + rank, uint64_t{0})
                                              : op.count * static_cast<uint64_t>(rank);
  return elements * op.element;
}

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

int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

int64_t deadline_after(int64_t timeout_ns) {
  int64_t deadline = 0;
  return __builtin_add_overflow(now_ns(), timeout_ns, &deadline) ? INT64_MAX : deadline;
}

Failure validate(const db_op* raw, int32_t rank, int32_t size, int64_t default_timeout_ns, Op* op,
                 int32_t (*supports)(const db_op&)) {
  if (raw == nullptr || !DB_HAS(raw, db_op, scale))
    return Failure::invalid(
        "submit: op is NULL or its struct_size is too small; set it to sizeof(db_op)");
  *op = {};
  op->kind = raw->kind;
  op->dtype = raw->dtype;
  op->reduce = raw->reduce;
  op->root_or_peer = raw->root_or_peer;
  op->send = raw->send;
  op->recv = raw->recv;
  op->count = raw->count;
  op->tag = raw->tag;
  op->blocking = (raw->flags & DB_OP_BLOCKING) != 0;
  op->scale = raw->scale;
  if (supports(*raw) == 0) {
    std::string what = std::string(kind_name(raw->kind)) + " of " + dtype_name(raw->dtype);
    if (is_reducing(raw->kind)) what += std::string(" with ") + reduce_name(raw->reduce);
    return Failure::make(DB_ERR_UNSUPPORTED, what + " in memory of kind " +
                                                 std::to_string(raw->memory) +
                                                 " is not supported; call supports() first");
  }
  op->element = op->kind == DB_BARRIER ? 0 : dtype_size(op->dtype);
  if (raw->timeout_ns < 0)
    return invalid(*op, "timeout_ns is negative (" + std::to_string(raw->timeout_ns) + ")");
  op->timeout_ns = raw->timeout_ns == 0 ? default_timeout_ns : raw->timeout_ns;
  op->deadline_ns = deadline_after(op->timeout_ns);
  if (op->kind == DB_BARRIER) {
    op->count = 0;
    return {};
  }
  if (is_rooted(op->kind) || is_point_to_point(op->kind)) {
    if (op->root_or_peer < 0 || op->root_or_peer >= size)
      return invalid(*op, "root or peer is " + std::to_string(op->root_or_peer) +
                              ", but ranks go from 0 to " + std::to_string(size - 1));
  }
  if (is_point_to_point(op->kind)) {
    if (op->root_or_peer == rank)
      return invalid(*op, "the peer is this rank (" + std::to_string(rank) + ") itself");
    if (op->tag < 0 || op->tag > 32767)
      return invalid(*op, "tag is " + std::to_string(op->tag) + "; valid: 0 to 32767");
  }
  if (needs_recv_counts(op->kind)) {
    if (raw->recv_counts == nullptr) return invalid(*op, "recv_counts is NULL");
    op->recv_counts = raw->recv_counts;
    op->count = 0;
  }
  if (op->kind == DB_ALL_TO_ALL_V) {
    if (raw->send_counts == nullptr) return invalid(*op, "send_counts is NULL");
    op->send_counts = raw->send_counts;
  }
  if (!set_sizes(op, rank, size)) return invalid(*op, "the sizes overflow 64 bits");
  return check_buffers(op, rank, size);
}

std::string describe(const Op& op) {
  std::string text = kind_name(op.kind);
  if (op.kind != DB_BARRIER) {
    const uint64_t elements = op.count != 0 ? op.count : std::max(op.send_size, op.recv_size);
    text += " of " + std::to_string(elements) + " " + dtype_name(op.dtype);
  }
  if (is_reducing(op.kind)) text += std::string(" (") + reduce_name(op.reduce) + ")";
  if (op.kind == DB_SEND) text += " to rank " + std::to_string(op.root_or_peer);
  if (op.kind == DB_RECV) text += " from rank " + std::to_string(op.root_or_peer);
  if (op.sequence != 0) text += ", operation " + std::to_string(op.sequence);
  return text;
}

Failure failure_of_exception(const Op& op) {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return Failure::make(DB_ERR_NO_MEMORY, "no memory for " + describe(op), DB_ERROR_COMM_DEAD);
  } catch (const std::exception& error) {
    return Failure::make(DB_ERR_INTERNAL, describe(op) + ": " + error.what(), DB_ERROR_COMM_DEAD);
  }
}

void keep_counts(Op* op, int32_t size, std::vector<uint64_t>* store) {
  store->clear();
  const auto arrays = {&op->send_counts, &op->recv_counts};
  for (const uint64_t** const counts : arrays)
    if (*counts != nullptr) store->insert(store->end(), *counts, *counts + size);
  const uint64_t* next = store->data();
  for (const uint64_t** const counts : arrays)
    if (*counts != nullptr) *counts = std::exchange(next, next + size);
}

}  // namespace db

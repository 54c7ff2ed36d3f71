#include "comm/flight_recorder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <sstream>

#include "base/process.h"
#include "base/sha256.h"

namespace coupler::comm {
namespace {

std::byte* map(int file, size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory);
}

}  // namespace

std::unique_ptr<SharedMemory> SharedMemory::create(size_t bytes) {
  const Bytes32 token = random_bytes32();
  static_assert(sizeof token == token_size);
  UniqueFd file(memfd_create("coupler-order-board", MFD_CLOEXEC));
  if (!file || ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) return nullptr;
  std::byte* const data = map(file.get(), bytes);
  if (data == nullptr) return nullptr;
  std::memcpy(data, token.data(), token.size());
  auto offer =
      fmt::format("{} /proc/{}/fd/{} {}", machine_identity(), getpid(), file.get(), to_hex(token));
  return std::unique_ptr<SharedMemory>(
      new SharedMemory(data, bytes, std::move(file), std::move(offer)));
}

std::unique_ptr<SharedMemory> SharedMemory::open(const std::string& offer, size_t bytes) {
  std::istringstream words(offer);
  std::string machine, path, token;
  words >> machine >> path >> token;
  if (machine != machine_identity()) return nullptr;
  const UniqueFd file(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOCTTY));
  struct stat status {};
  if (!file || fstat(file.get(), &status) != 0 || status.st_size != static_cast<off_t>(bytes)) {
    return nullptr;
  }
  std::byte* const data = map(file.get(), bytes);
  if (data == nullptr) return nullptr;
  std::unique_ptr<SharedMemory> memory(new SharedMemory(data, bytes, {}, offer));
  Bytes32 found{};
  std::memcpy(found.data(), data, found.size());
  return to_hex(found) == token ? std::move(memory) : nullptr;
}

SharedMemory::~SharedMemory() { munmap(data_, bytes_); }

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

void add_counts(const uint64_t* counts, int world_size, Fingerprint& result) {
  uint64_t hash = static_cast<uint64_t>(world_size);
  for (int rank = 0; rank < world_size; ++rank) {
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

Fingerprint fingerprint_of(const db_op& op, int world_size) {
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
      add_counts(op.recv_counts, world_size, result);
      break;
    case DB_ALL_TO_ALL_V:
      for (int rank = 0; rank < world_size; ++rank) result.shown += op.send_counts[rank];
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

static_assert(std::atomic<uint64_t>::is_always_lock_free, "the recorder is shared by processes");

size_t FlightRecorder::bytes(int world_size) {
  const auto ranks = static_cast<size_t>(world_size);
  return align(sizeof(Header)) + ranks * sizeof(Member) + kSlots * ranks * sizeof(Entry) +
         ranks * ranks * 2 * kPairSlots * sizeof(Entry) +
         kCountSlots * ranks * (1 + 2 * ranks) * sizeof(Word);
}

FlightRecorder::FlightRecorder(std::unique_ptr<SharedMemory> memory, int rank, int world_size)
    : memory_(std::move(memory)), rank_(rank), world_size_(world_size) {
  const auto ranks = static_cast<size_t>(world_size);
  members_ = reinterpret_cast<Member*>(memory_->data() + align(sizeof(Header)));
  entries_ = reinterpret_cast<Entry*>(members_ + ranks);
  pairs_ = entries_ + kSlots * ranks;
  counts_ = reinterpret_cast<Word*>(pairs_ + ranks * ranks * 2 * kPairSlots);
  member(rank).process_id.store(static_cast<uint64_t>(getpid()), std::memory_order_release);
}

FlightRecorder::Entry& FlightRecorder::pair_entry(int sender, int receiver, bool sender_side,
                                                  uint64_t sequence) const {
  const auto pair = static_cast<uint64_t>(sender) * static_cast<uint64_t>(world_size_) +
                    static_cast<uint64_t>(receiver);
  return pairs_[(pair * 2 + (sender_side ? 0 : 1)) * kPairSlots + sequence % kPairSlots];
}

FlightRecorder::Word* FlightRecorder::counts(uint64_t sequence, int rank) const {
  const auto ranks = static_cast<uint64_t>(world_size_);
  return counts_ + (sequence % kCountSlots * ranks + static_cast<uint64_t>(rank)) * (1 + 2 * ranks);
}

void FlightRecorder::write(Entry& entry, uint64_t sequence, const Fingerprint& operation,
                           uint64_t chain) {
  entry.sequence.store(0, std::memory_order_relaxed);
  entry.what.store(operation.what, std::memory_order_release);
  entry.size.store(operation.size, std::memory_order_release);
  entry.shown.store(operation.shown, std::memory_order_release);
  entry.chain.store(chain, std::memory_order_release);
  entry.refused.store(0, std::memory_order_release);
  // A full fence: if two ranks enter at once, at least one sees the other's entry.
  entry.sequence.exchange(sequence, std::memory_order_seq_cst);
}

bool FlightRecorder::read(const Entry& entry, uint64_t sequence, Fingerprint& operation,
                          uint64_t& chain) {
  if (entry.sequence.load(std::memory_order_seq_cst) != sequence) return false;
  operation.what = entry.what.load(std::memory_order_acquire);
  operation.size = entry.size.load(std::memory_order_acquire);
  operation.shown = entry.shown.load(std::memory_order_acquire);
  chain = entry.chain.load(std::memory_order_acquire);
  return entry.sequence.load(std::memory_order_relaxed) == sequence;
}

std::optional<Disagreement> FlightRecorder::enter(uint64_t sequence, const Fingerprint& operation,
                                                  uint64_t chain) {
  write(entry(sequence, rank_), sequence, operation, chain);
  for (int rank = 0; rank < world_size_; ++rank) {
    Fingerprint theirs;
    uint64_t their_chain = 0;
    if (rank == rank_ || !read(entry(sequence, rank), sequence, theirs, their_chain)) continue;
    if (!(theirs == operation)) return Disagreement{.rank = rank, .theirs = theirs};
    if (their_chain != chain) return Disagreement{.rank = rank, .theirs = theirs, .earlier = true};
  }
  return std::nullopt;
}

std::optional<Disagreement> FlightRecorder::enter_counts(uint64_t sequence,
                                                         const uint64_t* send_counts,
                                                         const uint64_t* recv_counts) {
  // Per rank: the sequence, then what it sends to each, then what it takes from each.
  Word* mine = counts(sequence, rank_);
  mine[0].store(0, std::memory_order_relaxed);
  for (int rank = 0; rank < world_size_; ++rank) {
    mine[1 + rank].store(send_counts[rank], std::memory_order_release);
    mine[1 + world_size_ + rank].store(recv_counts[rank], std::memory_order_release);
  }
  mine[0].exchange(sequence, std::memory_order_seq_cst);
  for (int rank = 0; rank < world_size_; ++rank) {
    const Word* peer = counts(sequence, rank);
    if (rank == rank_ || peer[0].load(std::memory_order_seq_cst) != sequence) continue;
    const uint64_t sends = peer[1 + rank_].load(std::memory_order_acquire);
    const uint64_t takes = peer[1 + world_size_ + rank_].load(std::memory_order_acquire);
    if (peer[0].load(std::memory_order_relaxed) != sequence) continue;
    const bool i_send = takes != send_counts[rank];
    if (!i_send && sends == recv_counts[rank]) continue;
    return Disagreement{.rank = rank,
                        .theirs = {},
                        .counts = i_send ? Disagreement::kISend : Disagreement::kITake,
                        .my_count = i_send ? send_counts[rank] : recv_counts[rank],
                        .their_count = i_send ? takes : sends};
  }
  return std::nullopt;
}

std::optional<Disagreement> FlightRecorder::enter_pair(int peer, uint64_t sequence,
                                                       const Fingerprint& operation) {
  const bool sending = operation.kind() == DB_SEND;
  const int sender = sending ? rank_ : peer;
  const int receiver = sending ? peer : rank_;
  write(pair_entry(sender, receiver, sending, sequence), sequence, operation, 0);
  Fingerprint theirs;
  uint64_t chain = 0;
  if (!read(pair_entry(sender, receiver, !sending, sequence), sequence, theirs, chain)) {
    return std::nullopt;
  }
  // Messages with different tags may be received out of order: they are not compared.
  if (theirs.root() != operation.root()) return std::nullopt;
  if (theirs.dtype() == operation.dtype() && theirs.size == operation.size) return std::nullopt;
  return Disagreement{.rank = peer, .theirs = theirs};
}

void FlightRecorder::refuse(uint64_t sequence) {
  entry(sequence, rank_).refused.store(sequence, std::memory_order_release);
}

int FlightRecorder::refused_by(uint64_t sequence) const {
  for (int rank = 0; rank < world_size_; ++rank) {
    if (entry(sequence, rank).refused.load(std::memory_order_acquire) == sequence) return rank;
  }
  return -1;
}

Progress FlightRecorder::progress(int rank) const {
  Progress last;
  for (uint64_t slot = 0; slot < kSlots; ++slot) {
    const Entry& candidate = entry(slot, rank);
    const uint64_t sequence = candidate.sequence.load(std::memory_order_acquire);
    Fingerprint operation;
    uint64_t chain = 0;
    if (sequence > last.sequence && read(candidate, sequence, operation, chain)) {
      last = {sequence, operation};
    }
  }
  return last;
}

int64_t FlightRecorder::process_id(int rank) const {
  return static_cast<int64_t>(member(rank).process_id.load(std::memory_order_acquire));
}

void FlightRecorder::set_place(const std::string& place) {
  std::array<uint64_t, kPlaceWords> words{};
  std::memcpy(words.data(), place.data(), std::min(place.size(), sizeof words));
  for (size_t i = 0; i < kPlaceWords; ++i) {
    member(rank_).place[i].store(words[i], std::memory_order_relaxed);
  }
}

std::string FlightRecorder::place(int rank) const {
  std::array<char, kPlaceWords * sizeof(uint64_t) + 1> text{};
  for (size_t i = 0; i < kPlaceWords; ++i) {
    const uint64_t word = member(rank).place[i].load(std::memory_order_relaxed);
    std::memcpy(text.data() + i * sizeof word, &word, sizeof word);
  }
  return text.data();
}

void FlightRecorder::leave() { member(rank_).left.store(1, std::memory_order_release); }
bool FlightRecorder::left(int rank) const {
  return member(rank).left.load(std::memory_order_acquire) != 0;
}

bool FlightRecorder::set_shared_error(const SharedError& shared_error) {
  Header& shared = header();
  uint32_t expected = kEmpty;
  if (!shared.error_state.compare_exchange_strong(expected, kWriting)) return false;
  shared.error_code = shared_error.code;
  shared.error_reporter = shared_error.reporter;
  shared.error_failed_rank = shared_error.failed_rank;
  const size_t length = std::min(shared_error.text.size(), sizeof(shared.error_text) - 1);
  std::memcpy(shared.error_text, shared_error.text.data(), length);
  shared.error_text[length] = 0;
  shared.error_state.store(kSet, std::memory_order_release);
  return true;
}

std::optional<SharedError> FlightRecorder::shared_error() const {
  if (!has_shared_error()) return std::nullopt;
  const Header& shared = header();
  return SharedError{shared.error_code, shared.error_reporter, shared.error_failed_rank,
                     shared.error_text};
}

}  // namespace coupler::comm

// FlightRecorder: shared memory in which each rank of a communicator records every operation just
// before starting it, and compares it with what the others recorded under the same number. If two
// ranks disagree, the later one always sees the earlier one's entry, and then does not start.
//
// enter*() and refuse() of one rank must not overlap; everything else is [any-thread]. Ranks may be
// processes, or threads that each have a recorder over the same memory.
#pragma once

#include <coupler/distributed_backend.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/file_descriptor.h"

namespace coupler::comm {

// SharedMemory: memory shared by the ranks of one communicator on one machine. It is an anonymous
// memory file of rank 0, opened by the others through /proc, so that killed processes leave no
// name. One thread owns the object; the memory itself is shared by all.
class SharedMemory {
 public:
  // Zeroed memory, and offer(), a string with which processes of this machine find it. The first
  // token_size bytes hold a random token. Null if the system cannot provide it.
  static std::unique_ptr<SharedMemory> create(size_t bytes);
  // Null if the offer is another machine's or another container's.
  static std::unique_ptr<SharedMemory> open(const std::string& offer, size_t bytes);
  ~SharedMemory();

  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  static constexpr size_t token_size = 32;
  std::byte* data() const { return data_; }
  const std::string& offer() const { return offer_; }
  void close_file() { file_.reset(); }  // once every rank has opened it

 private:
  SharedMemory(std::byte* data, size_t bytes, UniqueFd file, std::string offer)
      : data_(data), bytes_(bytes), file_(std::move(file)), offer_(std::move(offer)) {}
  std::byte* data_;
  size_t bytes_;
  UniqueFd file_;
  std::string offer_;
};

// Fingerprint: what every rank must agree on about one operation, in 16 bytes, and its description
// as a string. Plain data; [any-thread].

// Beyond the ABI's kinds: a split is collective, too, and part of the order.
constexpr db_kind kSplitKind = 100;

std::string_view kind_name(db_kind kind);        // "all_reduce"
std::string_view dtype_name(db_dtype dtype);     // "f32"
std::string_view reduce_name(db_reduce reduce);  // "sum"
uint64_t dtype_size(db_dtype dtype);             // 0 if unknown
bool is_reducing(db_kind kind);
bool is_rooted(db_kind kind);
bool is_pairwise(db_kind kind);

struct Fingerprint {
  uint64_t what = 0;   // kind, dtype, reduction and root (SEND and RECV: tag), packed
  uint64_t size = 0;   // the count, or a hash of the count array
  uint64_t shown = 0;  // the count to print: a V kind's sum

  db_kind kind() const { return static_cast<db_kind>(what & 0xff); }
  db_dtype dtype() const { return static_cast<db_dtype>(what >> 8 & 0xff); }
  db_reduce reduce() const { return static_cast<db_reduce>(what >> 16 & 0xff); }
  int32_t root() const { return static_cast<int32_t>(what >> 32); }
  bool operator==(const Fingerprint& other) const {
    return what == other.what && size == other.size;
  }
};

// Includes only what matters for the kind: a barrier has no dtype, a broadcast no reduction.
// ALL_TO_ALL_V's counts differ by rank: the flight recorder compares them pair by pair.
Fingerprint fingerprint_of(const db_op& op, int world_size);
Fingerprint split_fingerprint(std::string_view name);

// The running hash of a sequence of operations.
inline uint64_t chain_hash(uint64_t chain, const Fingerprint& next) {
  chain = (chain ^ next.what) * 0x9e3779b97f4a7c15u;
  chain = ((chain ^ chain >> 29) + next.size) * 0xbf58476d1ce4e5b9u;
  return chain ^ chain >> 32;
}

// "all_reduce f32 x1000 sum", "broadcast i64 x3 from rank 1", "barrier"
std::string describe(const Fingerprint& operation);

// The first error of a communicator, for all of its ranks.
struct SharedError {
  int32_t code = 0;  // coupler::ErrorCode
  int32_t reporter = -1;
  int32_t failed_rank = -1;
  std::string text;
};

struct Disagreement {
  int rank = -1;
  Fingerprint theirs;
  // An earlier operation differed (its entry is overwritten); theirs then belongs to this one.
  bool earlier = false;
  // ALL_TO_ALL_V: what I send to that rank (or take from it), and what it takes (or sends).
  enum Counts { kNone, kISend, kITake } counts = kNone;
  uint64_t my_count = 0, their_count = 0;
};

struct Progress {
  uint64_t sequence = 0;  // 0: none yet
  Fingerprint operation;
};

class FlightRecorder {
 public:
  FlightRecorder(std::unique_ptr<SharedMemory> memory, int rank, int world_size);
  static size_t bytes(int world_size);

  // Writes and compares. sequence counts from 1, for all operations except SEND and RECV.
  std::optional<Disagreement> enter(uint64_t sequence, const Fingerprint& operation,
                                    uint64_t chain);
  std::optional<Disagreement> enter_counts(uint64_t sequence, const uint64_t* send_counts,
                                           const uint64_t* recv_counts);
  // SEND and RECV: sequence counts the messages of this direction with that peer.
  std::optional<Disagreement> enter_pair(int peer, uint64_t sequence, const Fingerprint& operation);
  // The backend did not start the operation: no other rank may continue with it.
  void refuse(uint64_t sequence);
  // A rank that refused the operation; -1: none did.
  int refused_by(uint64_t sequence) const;

  Progress progress(int rank) const;  // what rank entered last
  int64_t process_id(int rank) const;
  // The place in the program of a rank's last call; truncated if too long.
  void set_place(const std::string& place);
  std::string place(int rank) const;
  void leave();  // this rank's communicator is being destroyed
  bool left(int rank) const;

  bool set_shared_error(const SharedError& shared_error);  // false: another rank was first
  bool has_shared_error() const {
    return header().error_state.load(std::memory_order_acquire) == kSet;
  }
  std::optional<SharedError> shared_error() const;

 private:
  static constexpr uint32_t kEmpty = 0, kWriting = 1, kSet = 2;
  static constexpr size_t kPlaceWords = 6;
  static constexpr uint64_t kSlots = 256, kPairSlots = 16, kCountSlots = 64;
  using Word = std::atomic<uint64_t>;

  struct Header {
    char token[SharedMemory::token_size];
    std::atomic<uint32_t> error_state;
    int32_t error_code, error_reporter, error_failed_rank;
    char error_text[2000];
  };
  struct alignas(64) Member {
    Word process_id, left, place[kPlaceWords];
  };
  // Read and written as a seqlock: sequence is 0 during changes.
  struct alignas(64) Entry {
    Word sequence, what, size, shown, chain, refused;
  };

  static size_t align(size_t size) { return (size + 63) / 64 * 64; }
  Header& header() const { return *reinterpret_cast<Header*>(memory_->data()); }
  Member& member(int rank) const { return members_[rank]; }
  Entry& entry(uint64_t sequence, int rank) const {
    return entries_[sequence % kSlots * static_cast<uint64_t>(world_size_) +
                    static_cast<uint64_t>(rank)];
  }
  Entry& pair_entry(int sender, int receiver, bool sender_side, uint64_t sequence) const;
  Word* counts(uint64_t sequence, int rank) const;
  static void write(Entry& entry, uint64_t sequence, const Fingerprint& operation, uint64_t chain);
  static bool read(const Entry& entry, uint64_t sequence, Fingerprint& operation, uint64_t& chain);

  std::unique_ptr<SharedMemory> memory_;
  int rank_, world_size_;
  Member* members_;
  Entry* entries_;
  Entry* pairs_;
  Word* counts_;
};

}  // namespace coupler::comm

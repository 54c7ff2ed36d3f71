// OrderBoard: shared memory in which each rank of a communicator records every operation just
// before starting it, and compares it with what the others recorded under the same number. If two
// ranks disagree, the later one always sees the earlier one's entry, and then does not start.
//
// enter*() and refuse() of one rank must not overlap; everything else is [any-thread]. Ranks may be
// processes, or threads that each have a board over the same memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "comm/board_memory.h"
#include "comm/fingerprint.h"

namespace coupler {

// The first error of a communicator, for all of its ranks.
struct Mark {
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

class OrderBoard {
 public:
  OrderBoard(std::unique_ptr<BoardMemory> memory, int rank, int world);
  static size_t bytes(int world);

  void close_file() { memory_->close_file(); }

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
  bool entered(int rank, uint64_t sequence) const { return progress(rank).sequence >= sequence; }
  int64_t process_id(int rank) const;
  // The place in the program of a rank's last call; truncated if too long.
  void set_place(const std::string& place);
  std::string place(int rank) const;
  void leave();  // this rank's communicator is being destroyed
  bool left(int rank) const;

  bool set_mark(const Mark& mark);  // false: another rank was first
  bool marked() const { return header().mark_state.load(std::memory_order_acquire) == kSet; }
  std::optional<Mark> mark() const;

 private:
  static constexpr uint32_t kEmpty = 0, kWriting = 1, kSet = 2;
  static constexpr size_t kPlaceWords = 6;
  static constexpr uint64_t kSlots = 256, kPairSlots = 16, kCountSlots = 64;
  using Word = std::atomic<uint64_t>;

  struct Header {
    char token[BoardMemory::token_size];
    std::atomic<uint32_t> mark_state;
    int32_t mark_code, mark_reporter, mark_failed_rank;
    char mark_text[2000];
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
    return entries_[sequence % kSlots * static_cast<uint64_t>(world_) +
                    static_cast<uint64_t>(rank)];
  }
  Entry& pair_entry(int sender, int receiver, bool sender_side, uint64_t sequence) const;
  Word* counts(uint64_t sequence, int rank) const;
  static void write(Entry& entry, uint64_t sequence, const Fingerprint& operation, uint64_t chain);
  static bool read(const Entry& entry, uint64_t sequence, Fingerprint& operation, uint64_t& chain);

  std::unique_ptr<BoardMemory> memory_;
  int rank_, world_;
  Member* members_;
  Entry* entries_;
  Entry* pairs_;
  Word* counts_;
};

}  // namespace coupler

#include "comm/order_board.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace coupler {

static_assert(std::atomic<uint64_t>::is_always_lock_free, "the board is shared by processes");

size_t OrderBoard::bytes(int world) {
  const auto ranks = static_cast<size_t>(world);
  return align(sizeof(Header)) + ranks * sizeof(Member) + kSlots * ranks * sizeof(Entry) +
         ranks * ranks * 2 * kPairSlots * sizeof(Entry) +
         kCountSlots * ranks * (1 + 2 * ranks) * sizeof(Word);
}

OrderBoard::OrderBoard(std::unique_ptr<BoardMemory> memory, int rank, int world)
    : memory_(std::move(memory)), rank_(rank), world_(world) {
  const auto ranks = static_cast<size_t>(world);
  members_ = reinterpret_cast<Member*>(memory_->data() + align(sizeof(Header)));
  entries_ = reinterpret_cast<Entry*>(members_ + ranks);
  pairs_ = entries_ + kSlots * ranks;
  counts_ = reinterpret_cast<Word*>(pairs_ + ranks * ranks * 2 * kPairSlots);
  member(rank).process_id.store(static_cast<uint64_t>(getpid()), std::memory_order_release);
}

OrderBoard::Entry& OrderBoard::pair_entry(int sender, int receiver, bool sender_side,
                                          uint64_t sequence) const {
  const auto pair = static_cast<uint64_t>(sender) * static_cast<uint64_t>(world_) +
                    static_cast<uint64_t>(receiver);
  return pairs_[(pair * 2 + (sender_side ? 0 : 1)) * kPairSlots + sequence % kPairSlots];
}

OrderBoard::Word* OrderBoard::counts(uint64_t sequence, int rank) const {
  const auto ranks = static_cast<uint64_t>(world_);
  return counts_ + (sequence % kCountSlots * ranks + static_cast<uint64_t>(rank)) * (1 + 2 * ranks);
}

void OrderBoard::write(Entry& entry, uint64_t sequence, const Fingerprint& operation,
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

bool OrderBoard::read(const Entry& entry, uint64_t sequence, Fingerprint& operation,
                      uint64_t& chain) {
  if (entry.sequence.load(std::memory_order_seq_cst) != sequence) return false;
  operation.what = entry.what.load(std::memory_order_acquire);
  operation.size = entry.size.load(std::memory_order_acquire);
  operation.shown = entry.shown.load(std::memory_order_acquire);
  chain = entry.chain.load(std::memory_order_acquire);
  return entry.sequence.load(std::memory_order_relaxed) == sequence;
}

std::optional<Disagreement> OrderBoard::enter(uint64_t sequence, const Fingerprint& operation,
                                              uint64_t chain) {
  write(entry(sequence, rank_), sequence, operation, chain);
  for (int rank = 0; rank < world_; ++rank) {
    Fingerprint theirs;
    uint64_t their_chain = 0;
    if (rank == rank_ || !read(entry(sequence, rank), sequence, theirs, their_chain)) continue;
    if (!(theirs == operation)) return Disagreement{.rank = rank, .theirs = theirs};
    if (their_chain != chain) return Disagreement{.rank = rank, .theirs = theirs, .earlier = true};
  }
  return std::nullopt;
}

std::optional<Disagreement> OrderBoard::enter_counts(uint64_t sequence, const uint64_t* send_counts,
                                                     const uint64_t* recv_counts) {
  // Per rank: the sequence, then what it sends to each, then what it takes from each.
  Word* mine = counts(sequence, rank_);
  mine[0].store(0, std::memory_order_relaxed);
  for (int rank = 0; rank < world_; ++rank) {
    mine[1 + rank].store(send_counts[rank], std::memory_order_release);
    mine[1 + world_ + rank].store(recv_counts[rank], std::memory_order_release);
  }
  mine[0].exchange(sequence, std::memory_order_seq_cst);
  for (int rank = 0; rank < world_; ++rank) {
    const Word* peer = counts(sequence, rank);
    if (rank == rank_ || peer[0].load(std::memory_order_seq_cst) != sequence) continue;
    const uint64_t sends = peer[1 + rank_].load(std::memory_order_acquire);
    const uint64_t takes = peer[1 + world_ + rank_].load(std::memory_order_acquire);
    if (peer[0].load(std::memory_order_relaxed) != sequence) continue;
    if (takes != send_counts[rank]) {
      return Disagreement{.rank = rank,
                          .theirs = {},
                          .counts = Disagreement::kISend,
                          .my_count = send_counts[rank],
                          .their_count = takes};
    }
    if (sends != recv_counts[rank]) {
      return Disagreement{.rank = rank,
                          .theirs = {},
                          .counts = Disagreement::kITake,
                          .my_count = recv_counts[rank],
                          .their_count = sends};
    }
  }
  return std::nullopt;
}

std::optional<Disagreement> OrderBoard::enter_pair(int peer, uint64_t sequence,
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

void OrderBoard::refuse(uint64_t sequence) {
  entry(sequence, rank_).refused.store(sequence, std::memory_order_release);
}

int OrderBoard::refused_by(uint64_t sequence) const {
  for (int rank = 0; rank < world_; ++rank) {
    if (entry(sequence, rank).refused.load(std::memory_order_acquire) == sequence) return rank;
  }
  return -1;
}

Progress OrderBoard::progress(int rank) const {
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

int64_t OrderBoard::process_id(int rank) const {
  return static_cast<int64_t>(member(rank).process_id.load(std::memory_order_acquire));
}

void OrderBoard::set_place(const std::string& place) {
  std::array<uint64_t, kPlaceWords> words{};
  std::memcpy(words.data(), place.data(), std::min(place.size(), sizeof words));
  for (size_t i = 0; i < kPlaceWords; ++i) {
    member(rank_).place[i].store(words[i], std::memory_order_relaxed);
  }
}

std::string OrderBoard::place(int rank) const {
  std::array<char, kPlaceWords * sizeof(uint64_t) + 1> text{};
  for (size_t i = 0; i < kPlaceWords; ++i) {
    const uint64_t word = member(rank).place[i].load(std::memory_order_relaxed);
    std::memcpy(text.data() + i * sizeof word, &word, sizeof word);
  }
  return text.data();
}

void OrderBoard::leave() { member(rank_).left.store(1, std::memory_order_release); }
bool OrderBoard::left(int rank) const {
  return member(rank).left.load(std::memory_order_acquire) != 0;
}

bool OrderBoard::set_mark(const Mark& mark) {
  Header& board = header();
  uint32_t expected = kEmpty;
  if (!board.mark_state.compare_exchange_strong(expected, kWriting)) return false;
  board.mark_code = mark.code;
  board.mark_reporter = mark.reporter;
  board.mark_failed_rank = mark.failed_rank;
  const size_t length = std::min(mark.text.size(), sizeof(board.mark_text) - 1);
  std::memcpy(board.mark_text, mark.text.data(), length);
  board.mark_text[length] = 0;
  board.mark_state.store(kSet, std::memory_order_release);
  return true;
}

std::optional<Mark> OrderBoard::mark() const {
  if (!marked()) return std::nullopt;
  const Header& board = header();
  return Mark{board.mark_code, board.mark_reporter, board.mark_failed_rank, board.mark_text};
}

}  // namespace coupler

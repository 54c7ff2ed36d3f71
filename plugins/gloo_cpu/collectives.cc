#include "gloo_cpu/collectives.h"

#include <algorithm>

#include "common/reduce.h"

namespace db::gloo_cpu {
namespace {

constexpr uint64_t kKeptScratch = 16 << 20;  // a larger buffer is freed after the operation

}  // namespace

Collectives::Collectives(int32_t rank, int32_t size, ConnectionEngine* engine,
                         CollectiveLimits limits)
    : rank_(rank),
      size_(size),
      engine_(engine),
      limits_(limits),
      halving_(size >= limits.halving_ranks ? circulant_rounds(rank, size)
                                            : std::vector<CirculantRound>()),
      libgloo_(limits.by_libgloo && engine != nullptr
                   ? std::make_unique<GlooCollectives>(rank, size, engine)
                   : nullptr) {
  for (Round& round : rounds_) {  // messages must not move, so this is their final capacity
    round.outgoing.reserve(static_cast<size_t>(size - 1));
    round.incoming.reserve(static_cast<size_t>(size - 1));
  }
  parts_.resize(static_cast<size_t>(size));
  for (int32_t step = 1; step < size; ++step) peers_.push_back((rank + step) % size);
}

Failure Collectives::run(const Op& op) {
  op_ = &op;
  combine_ = op.reduce != 0 ? reduce_function(op.dtype, op.reduce) : nullptr;
  header_ = make_header(op, size_);
  header_.sequence = ++sequence_;
  last_combined_ = nullptr;
  heard_.clear();
  in_libgloo_ = libgloo_ != nullptr && GlooCollectives::has(op);
  if (in_libgloo_) return libgloo_->run(op, header_, op.blocking ? limits_.spin_ns : 0);
  Failure failure = run_kind();
  if (scratch_size_ > kKeptScratch) {
    scratch_.reset();
    scratch_size_ = 0;
  }
  return failure;
}

std::vector<int32_t> Collectives::received_from() const {
  if (in_libgloo_) return libgloo_->received_from();
  // In each round, the sender had heard from as many ranks as this one, at the same distances.
  std::vector<int32_t> ranks{rank_};
  for (const int32_t from : heard_) {
    const auto known = ranks.size();
    if (known >= static_cast<size_t>(size_)) break;  // these are all
    const int32_t distance = from - rank_ + size_;
    for (size_t i = 0; i < known; ++i) ranks.push_back((ranks[i] + distance) % size_);
  }
  return ranks;
}

Failure Collectives::run_kind() {
  switch (op_->kind) {
    case DB_ALL_REDUCE:
      return all_reduce();
    case DB_BROADCAST:
      return broadcast();
    case DB_REDUCE:
      return reduce();
    case DB_ALL_GATHER:
    case DB_ALL_GATHER_V:
      return all_gather();
    case DB_REDUCE_SCATTER:
    case DB_REDUCE_SCATTER_V:
      return reduce_scatter();
    case DB_ALL_TO_ALL:
    case DB_ALL_TO_ALL_V:
      return all_to_all();
    case DB_GATHER:
      return gather();
    case DB_SCATTER:
      return scatter();
    case DB_BARRIER:
      return barrier();
    default:
      return Failure::make(DB_ERR_UNSUPPORTED, "gloo_cpu: no such operation");
  }
}

// ---- Rounds and parts --------------------------------------------------------------------------

void Collectives::begin(uint32_t slot) {
  round_ = &rounds_[slot];
  round_->outgoing.clear();
  round_->incoming.clear();
  round_->group.pending = 0;
}

Header Collectives::header_of(uint64_t bytes) const {
  Header header = header_;
  header.bytes = bytes;
  return header;
}

void Collectives::send(int32_t peer, const void* data, uint64_t bytes) {
  engine_->send(peer, header_of(bytes), data, &round_->group, &round_->outgoing.emplace_back());
}

void Collectives::receive(int32_t peer, void* data, uint64_t bytes) {
  engine_->receive(peer, header_of(bytes), data, &round_->group, &round_->incoming.emplace_back());
}

void Collectives::receive_combined(const void* own, void* data, uint64_t bytes) {
  for (const int32_t peer : peers_) {
    Incoming& message = round_->incoming.emplace_back();
    const void* const before = peer == peers_.front() ? own : data;
    engine_->receive(peer, header_of(bytes), data, &round_->group, &message,
                     {combine_, static_cast<const uint8_t*>(before), op_->element}, last_combined_);
    last_combined_ = &message;
  }
}

Failure Collectives::finish(uint32_t slot) {
  Round& round = rounds_[slot];
  if (round.group.pending > 0) {
    const int64_t spin = op_->blocking ? limits_.spin_ns : 0;
    if (Failure failure = engine_->wait(round.group, op_->deadline_ns, spin); !failure.ok()) {
      if (!round.incoming.empty()) header_.round = round.incoming.front().expected.round;
      return failure;
    }
  }
  // Its messages are about to be reused, so drop every reference that waits for their completion.
  for (Round& other : rounds_)
    for (Incoming& message : other.incoming)
      if (!round.incoming.empty() && message.after == &round.incoming.back())
        message.after = nullptr;
  if (!round.incoming.empty() && last_combined_ == &round.incoming.back()) last_combined_ = nullptr;
  ++header_.round;
  return {};
}

bool Collectives::is_small(uint64_t bytes) const {
  if (size_ == 2) return bytes <= limits_.pair_exchange_bytes;
  return bytes <= limits_.exchange_bytes / static_cast<uint64_t>(size_ - 1);
}

void Collectives::even_parts(uint64_t count) {
  const auto ranks = static_cast<uint64_t>(size_);
  const uint64_t each = count / ranks, longer = count % ranks;
  uint64_t offset = 0;
  for (uint64_t i = 0; i < ranks; ++i) {
    const uint64_t bytes = (each + (i < longer ? 1 : 0)) * op_->element;
    parts_[i] = {offset, bytes};
    offset += bytes;
  }
}

void Collectives::given_parts() {
  uint64_t offset = 0;
  for (int32_t rank = 0; rank < size_; ++rank) {
    const uint64_t bytes = part_size(*op_, op_->recv_counts, rank) * op_->element;
    parts_[static_cast<size_t>(rank)] = {offset, bytes};
    offset += bytes;
  }
}

Collectives::Part Collectives::joined(const PartRun& run) const {
  const Part first = part(run.first), last = part(run.first + run.count - 1);
  return {first.offset, last.offset + last.size - first.offset};
}

uint8_t* Collectives::scratch(uint64_t bytes) {
  if (bytes > scratch_size_) {
    scratch_.reset();  // first: both buffers together may not fit into memory
    scratch_.reset(new uint8_t[bytes]);
    scratch_size_ = bytes;
  }
  return scratch_.get();
}

}  // namespace db::gloo_cpu

// Segment: the memory that the ranks of one communicator share. It is a file without a name, which
// rank 0 creates and every rank maps; its size is sealed. It holds
//   - a head: why the communicator failed, as its first rank to notice says, and the word on which
//     ranks sleep that wait for others in a collective;
//   - for each rank a control block: which collective and which step it has reached;
//   - for each rank two slots for small data, and staging memory for two chunks of large data and
//     two chunks of results;
//   - for each ordered pair of ranks a ring for messages.
// After that, the file has room for arenas (arena.h), which are mapped later, if at all.
// Pages are used only once they are written. Thread rule: any thread; the words in it are atomic,
// and who may write the data at which time is said in synchronizer.h and message_engine.h.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "common/error.h"
#include "common/fingerprint.h"
#include "common/local_socket.h"
#include "shm/tuning.h"

namespace db::shm {

// Of everything below: ranks with another version must not share memory.
inline constexpr uint32_t kLayoutVersion = 3;

// What one rank shows when it enters a collective: one cache line, with the data if it is tiny.
// Collective n uses entry n % 2.
struct alignas(64) Entry {
  std::atomic<uint32_t> number{0};  // of the collective; written last
  uint32_t zero = 0;
  std::atomic<uint64_t> what{0}, size{0};  // its Fingerprint
  std::array<uint8_t, 32> data{};
};
static_assert(sizeof(Entry) == 64);

// Where the remaining ranks of shrink number `number` meet; written by the first of them.
struct Offer {
  std::atomic<uint32_t> number{0};
  uint32_t zero = 0;
  uint64_t members = 0;  // a hash of the remaining ranks
  std::array<uint8_t, 496> invitation{};
};

// Words that different ranks write are on different pairs of cache lines, which are fetched
// together.
struct alignas(128) Control {
  struct alignas(128) {
    Entry entry;
  } entries[2];
  alignas(128) std::atomic<uint32_t> step{0};  // of the large collectives; written by this rank
  // A rank that waits for messages sleeps on its own bell, which the others ring.
  alignas(128) std::atomic<uint32_t> bell{0};
  std::atomic<uint32_t> listening{0};
  alignas(128) std::atomic<uint32_t> left{0};  // 1: this rank takes part in nothing more
  std::atomic<int32_t> pid{0};                 // in its own PID namespace
  alignas(128) Offer offer;
};

// Positions count bytes and wrap around.
struct Ring {
  alignas(128) std::atomic<uint32_t> written{0};  // by the sender
  alignas(128) std::atomic<uint32_t> read{0};     // by the receiver
  alignas(128) uint8_t data[1];                   // ring_bytes
};

// Why the communicator failed. The first rank that changes state from 0 to 1 fills it in and then
// sets 2.
struct Cause {
  std::atomic<uint32_t> state{0};
  int32_t status = 0;
  int32_t failed_rank = -1;
  int32_t reporter = -1;
  std::array<char, 1000> text{};
};

struct Head {
  Cause cause;
  // Ranks that wait for others in a collective sleep on one word, which the last of those to come
  // changes. So each sleeps once, however many it waits for.
  std::atomic<uint32_t> sleepers{0};
  std::atomic<uint32_t> gathered{0};
};

// Where each part is, in bytes from the segment's begin. Parts of different ranks share no page.
struct Layout {
  // chunk_bytes: 0: as kTuning says. arena_bytes: of each rank's arena, whole pages; 0: none.
  static Layout of(int32_t ranks, uint64_t chunk_bytes, uint64_t arena_bytes = 0);

  int32_t ranks = 0;
  uint64_t arena_bytes = 0;
  uint64_t slot_bytes = 0, chunk_bytes = 0, ring_bytes = 0;
  uint64_t slots = 0, staging = 0, rings = 0;  // where the first rank's begin
  uint64_t slot_stride = 0, staging_stride = 0,
           ring_stride = 0;  // from one rank or pair to the next
  uint64_t total = 0;        // of the segment; in its file, the arenas follow

  uint64_t file_bytes() const { return total + static_cast<uint64_t>(ranks) * arena_bytes; }
};

// The error of a system call for shared memory, with what to do.
Failure no_memory(const char* call, uint64_t bytes, int error);

class Segment {
 public:
  // A new segment and its file, which is passed to the other ranks.
  static std::unique_ptr<Segment> create(const Layout& layout, Descriptor* file, Failure* failure);
  // The segment in a file that rank 0 passed.
  static std::unique_ptr<Segment> map(const Layout& layout, const Descriptor& file,
                                      Failure* failure);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  const Layout& layout() const { return layout_; }
  uint8_t* base() const { return base_; }
  Head& head() const { return *reinterpret_cast<Head*>(base_); }
  Cause& cause() const { return head().cause; }
  Control& control(int32_t rank) const {
    return reinterpret_cast<Control*>(base_ + kControls)[rank];
  }
  Entry& entry(int32_t rank, uint32_t number) const {
    return control(rank).entries[number % 2].entry;
  }
  uint8_t* slot(int32_t rank, uint32_t number) const {
    return base_ + layout_.slots + at(rank) * layout_.slot_stride +
           (number % 2) * layout_.slot_bytes;
  }
  uint8_t* staged(int32_t rank, uint64_t chunk) const {
    return base_ + layout_.staging + at(rank) * layout_.staging_stride +
           (chunk % 2) * layout_.chunk_bytes;
  }
  uint8_t* result(int32_t rank, uint64_t chunk) const {
    return staged(rank, chunk) + 2 * layout_.chunk_bytes;
  }
  Ring& ring(int32_t from, int32_t to) const {
    return *reinterpret_cast<Ring*>(base_ + layout_.rings +
                                    (at(from) * at(layout_.ranks) + at(to)) * layout_.ring_stride);
  }

  static constexpr uint64_t kControls = 4096;

 private:
  Segment(const Layout& layout, uint8_t* base) : layout_(layout), base_(base) {}
  static uint64_t at(int32_t rank) { return static_cast<uint64_t>(rank); }

  const Layout layout_;
  uint8_t* const base_;
};

}  // namespace db::shm

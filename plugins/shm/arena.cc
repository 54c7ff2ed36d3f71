#include "shm/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <iterator>
#include <string>
#include <utility>

namespace db::shm {
namespace {

constexpr uint64_t kArenaPage = 4096;
// fallocate gives up at a signal, after which it is repeated this often.
constexpr int kMostInterruptions = 100;

}  // namespace

uint64_t arena_bytes_for(int32_t ranks, uint64_t chunk_bytes) {
  const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
  if (pages <= 0 || page <= 0) return 0;
  const uint64_t each = static_cast<uint64_t>(pages) * static_cast<uint64_t>(page) /
                        static_cast<uint64_t>(ranks) / kArenaPage * kArenaPage;
  rlimit limit{};  // beyond it, a signal would end the process
  const bool fits = getrlimit(RLIMIT_FSIZE, &limit) == 0 &&
                    limit.rlim_cur >= Layout::of(ranks, chunk_bytes, each).file_bytes();
  return fits ? each : 0;
}

Arena::Arena(Descriptor file, const Layout& layout, int32_t rank)
    : file_(std::move(file)),
      begin_(layout.total),
      bytes_(layout.file_bytes() - layout.total),
      own_begin_(begin_ + static_cast<uint64_t>(rank) * layout.arena_bytes),
      own_end_(own_begin_ + layout.arena_bytes) {
  if (layout.arena_bytes > 0) free_[own_begin_] = layout.arena_bytes;
}

Arena::~Arena() {
  if (uint8_t* const base = base_.load()) munmap(base, bytes_);
}

// A process that locks its memory (mlockall) would get all pages of what it maps, and a core dump
// would read them. So this is mapped without access, excepted from both, and then opened.
Failure Arena::map() {
  void* const memory = mmap(nullptr, bytes_, PROT_NONE, MAP_SHARED | MAP_NORESERVE, file_.get(),
                            static_cast<off_t>(begin_));
  if (memory == MAP_FAILED) return no_memory("mmap", bytes_, errno);
  if (munlock(memory, bytes_) != 0 || madvise(memory, bytes_, MADV_DONTDUMP) != 0 ||
      mprotect(memory, bytes_, PROT_READ | PROT_WRITE) != 0) {
    const int error = errno;
    munmap(memory, bytes_);
    return no_memory("preparing the mapping", bytes_, error);
  }
  base_.store(static_cast<uint8_t*>(memory), std::memory_order_release);
  return {};
}

// Takes the pages now, so that a write never ends in a signal for want of memory.
Failure Arena::commit(uint64_t place, uint64_t bytes) {
  for (int i = 0; i < kMostInterruptions; ++i) {
    if (fallocate(file_.get(), 0, static_cast<off_t>(place), static_cast<off_t>(bytes)) == 0)
      return {};
    if (errno != EINTR) break;
  }
  return no_memory("fallocate", bytes, errno);
}

std::unique_ptr<Arena::Block> Arena::allocate(uint64_t bytes, Failure* failure) {
  const std::lock_guard lock(mutex_);
  auto found = free_.begin();
  while (found != free_.end() && found->second < bytes) ++found;
  if (found == free_.end()) {
    *failure = Failure::make(
        DB_ERR_NO_MEMORY,
        "the arena of this rank, " + std::to_string((own_end_ - own_begin_) >> 10) +
            " KiB, has no room for " + std::to_string(bytes) + " more bytes in one piece");
    return nullptr;
  }
  const uint64_t size = (bytes + kArenaPage - 1) / kArenaPage * kArenaPage;
  const uint64_t place = found->first, room = found->second;
  if (!is_mapped()) {
    *failure = map();
    if (!failure->ok()) return nullptr;
  }
  *failure = commit(place, size);
  if (!failure->ok()) return nullptr;
  std::unique_ptr<Block> block(new Block(shared_from_this(), place, size));
  auto rest = free_.extract(found);
  if (room > size) {
    rest.key() = place + size;
    rest.mapped() = room - size;
    free_.insert(std::move(rest));
  }
  return block;
}

void Arena::give_back(uint64_t place, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  // Returns the pages to the system; the next to use this memory finds zeros.
  if (fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(place),
                static_cast<off_t>(bytes)) != 0)
    return;  // it could not be promised to be zeros, so it is not used again
  auto after = free_.lower_bound(place);
  if (after != free_.end() && after->first == place + bytes) {
    bytes += after->second;
    after = free_.erase(after);
  }
  if (after != free_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == place) {
      before->second += bytes;
      return;
    }
  }
  free_[place] = bytes;
}

uint64_t Arena::place_of(const void* buffer, uint64_t bytes) const {
  const uint8_t* const base = base_.load(std::memory_order_acquire);
  if (base == nullptr) return 0;
  const auto from_base = reinterpret_cast<uintptr_t>(buffer) - reinterpret_cast<uintptr_t>(base);
  if (from_base > bytes_) return 0;  // also for a buffer before it, since the difference wraps
  const uint64_t place = begin_ + from_base;
  return place >= own_begin_ && place <= own_end_ && bytes <= own_end_ - place ? place : 0;
}

}  // namespace db::shm

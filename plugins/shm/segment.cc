#include "shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

namespace db::shm {
namespace {

constexpr uint64_t kPage = 4096;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

static_assert(sizeof(Head) <= Segment::kControls);
static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(std::atomic<uint32_t>) == 4);

uint64_t round_up(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

std::string limit_text(rlim_t limit) {
  return limit == RLIM_INFINITY ? "unlimited" : std::to_string(limit / 1024) + " KiB";
}

// What to do if the system refuses memory.
std::string memory_hint(int error) {
  rlimit limit{};
  if (error == EMFILE || error == ENFILE)
    return "; this process or machine may open no more files: raise `ulimit -n`";
  if (error == EAGAIN && getrlimit(RLIMIT_MEMLOCK, &limit) == 0)
    return "; the process locks its memory (mlockall), of which it may lock " +
           limit_text(limit.rlim_cur) + ": raise `ulimit -l`";
  if (error == ENOMEM && getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    return "; the address space of the process is limited to " + limit_text(limit.rlim_cur) +
           ": raise `ulimit -v`";
  if (error == ENOMEM || error == ENOSPC)
    return "; the machine or the process's control group (memory.max) has no memory left";
  if (error == ENOSYS || error == EPERM)
    return "; memfd_create is missing or forbidden here (Linux 3.17 or a seccomp profile that "
           "allows it is needed): use another transport";
  return "";
}

uint8_t* map_file(const Descriptor& file, uint64_t bytes, Failure* failure) {
  void* const memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file.get(), 0);
  if (memory != MAP_FAILED) return static_cast<uint8_t*>(memory);
  *failure = no_memory("mmap", bytes, errno);
  return nullptr;
}

}  // namespace

Failure no_memory(const char* call, uint64_t bytes, int error) {
  return Failure::make(error == ENOMEM || error == ENOSPC ? DB_ERR_NO_MEMORY : DB_ERR_SYSTEM,
                       std::string("cannot share ") + std::to_string(bytes / 1024) +
                           " KiB of memory: " + call + ": " + std::strerror(error) +
                           memory_hint(error),
                       0, -1, error);
}

std::string describe_tuning() {
  std::string text;
  for (const Tuning& row : kTuning) {
    const auto kib = [](uint64_t bytes) { return std::to_string(bytes >> 10) + " KiB"; };
    text += text.empty() ? "" : "\n";
    text += row.most_ranks == INT32_MAX ? "more ranks"
                                        : "up to " + std::to_string(row.most_ranks) + " ranks";
    text += ": every rank reads all up to " + kib(row.slot_bytes) + ", then chunks of " +
            kib(row.chunk_bytes) + " divided among the ranks";
  }
  return text;
}

Layout Layout::of(int32_t ranks, uint64_t chunk_bytes, uint64_t arena_bytes) {
  const Tuning& tuning = tuning_of(ranks);
  const auto all = static_cast<uint64_t>(ranks);
  Layout layout;
  layout.ranks = ranks;
  layout.arena_bytes = arena_bytes;
  // all_to_all_v shows its counts in the slot.
  layout.slot_bytes = std::max(tuning.slot_bytes, round_up(all * sizeof(uint64_t), kPage));
  // Each rank has a part of a chunk.
  const uint64_t chunk = chunk_bytes != 0 ? chunk_bytes : tuning.chunk_bytes;
  layout.chunk_bytes = round_up(std::max(chunk, all * 64), kPage);
  layout.ring_bytes = tuning.ring_bytes;
  layout.slot_stride = 2 * layout.slot_bytes;
  layout.staging_stride = 4 * layout.chunk_bytes;
  layout.ring_stride = round_up(offsetof(Ring, data) + layout.ring_bytes, kPage);
  layout.slots = round_up(Segment::kControls + all * sizeof(Control), kPage);
  layout.staging = layout.slots + all * layout.slot_stride;
  layout.rings = layout.staging + all * layout.staging_stride;
  layout.total = layout.rings + all * all * layout.ring_stride;
  return layout;
}

std::unique_ptr<Segment> Segment::create(const Layout& layout, Descriptor* file, Failure* failure) {
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < layout.total) {
    *failure = Failure::make(  // beyond it, a signal would end the process
        DB_ERR_NO_MEMORY, "cannot share " + std::to_string(layout.total / 1024) +
                              " KiB of memory: files of the process are limited to " +
                              limit_text(limit.rlim_cur) + ": raise `ulimit -f`");
    return nullptr;
  }
  *file = Descriptor(memfd_create("coupler-shm", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const auto refuse = [&](const char* call) {
    *failure = no_memory(call, layout.total, errno);
    return nullptr;
  };
  if (!*file) return refuse("memfd_create");
  if (ftruncate(file->get(), static_cast<off_t>(layout.file_bytes())) != 0)
    return refuse("ftruncate");
  // So that at least what every operation uses is there.
  if (fallocate(file->get(), 0, 0, static_cast<off_t>(layout.slots)) != 0 && errno != EOPNOTSUPP)
    return refuse("fallocate");
  if (fcntl(file->get(), F_ADD_SEALS, kSeals) != 0) return refuse("sealing its size");
  uint8_t* const base = map_file(*file, layout.total, failure);
  if (base == nullptr) return nullptr;
  new (base) Head;
  std::unique_ptr<Segment> segment(new Segment(layout, base));
  for (int32_t rank = 0; rank < layout.ranks; ++rank) new (&segment->control(rank)) Control;
  // Rings begin as zeros, which is what their positions start with.
  return segment;
}

std::unique_ptr<Segment> Segment::map(const Layout& layout, const Descriptor& file,
                                      Failure* failure) {
  struct stat status {};
  const int seals = fcntl(file.get(), F_GET_SEALS);
  if (fstat(file.get(), &status) != 0 ||
      static_cast<uint64_t>(status.st_size) != layout.file_bytes() || seals < 0 ||
      (seals & kSeals) != kSeals) {
    *failure = Failure::make(DB_ERR_MISMATCH,
                             "rank 0 shares memory of another size than this rank expects; use the "
                             "same version of the plugin and the same options on all ranks",
                             0, 0);
    return nullptr;
  }
  uint8_t* const base = map_file(file, layout.total, failure);
  return base == nullptr ? nullptr : std::unique_ptr<Segment>(new Segment(layout, base));
}

Segment::~Segment() { munmap(base_, layout_.total); }

}  // namespace db::shm

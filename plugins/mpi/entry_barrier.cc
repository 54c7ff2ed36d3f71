#include "mpi/entry_barrier.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <string>

#include "common/fingerprint.h"
#include "common/futex.h"
#include "mpi/contention.h"
#include "mpi/runtime.h"

namespace db::mpi {
namespace {

constexpr int64_t kSpinNs = 100'000;              // a caller that has nothing else to do
constexpr int64_t kWorkerSpinNs = 20'000;         // the worker, while another thread computes
constexpr int64_t kOversubscribedSpinNs = 2'000;  // yielding
constexpr uint64_t kGone = uint64_t{1} << 32;
constexpr int64_t kSliceNs = 100'000'000;  // sleep between checks whether the peer is alive

// In shared memory.
struct SharedFingerprint {
  std::atomic<uint64_t> what;
  std::atomic<uint64_t> size;
};

// Whether the process has exited, reaped or not.
bool has_died(int32_t pid) {
  const int fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (fd < 0) return errno == ESRCH;
  pollfd poll_fd{fd, POLLIN, 0};
  const bool ended = poll(&poll_fd, 1, 0) == 1;
  close(fd);
  return ended;
}

}  // namespace

// Operation n writes its fingerprint to slot n % 2: no rank reaches n + 2 before all have left n.
struct alignas(128) EntryBarrier::RankSlot {
  std::atomic<uint32_t> arrived{0};  // the number of the operation this rank has reached
  std::atomic<uint32_t> sleepers{0};
  // kGone | the first operation in which this rank takes no part; 0: it has not withdrawn.
  std::atomic<uint64_t> gone{0};
  int32_t pid = 0;
  SharedFingerprint fingerprints[2] = {};
};

EntryBarrier::RankSlot* EntryBarrier::slot(int32_t rank) const {
  return static_cast<RankSlot*>(memory_) + rank;
}

EntryBarrier::EntryBarrier(void* memory, size_t bytes, int32_t rank, int32_t size,
                           bool oversubscribed)
    : memory_(memory), bytes_(bytes), rank_(rank), size_(size), oversubscribed_(oversubscribed) {}

EntryBarrier::~EntryBarrier() {
  withdraw();
  munmap(memory_, bytes_);
}

Failure EntryBarrier::create(MPI_Comm comm, std::unique_ptr<EntryBarrier>* entry_barrier) {
  int rank = 0, size = 0, local_size = 0;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  if (size == 1) return {};
  const auto failed = [](int code) { return mpi_failure(code, "setting up a communicator"); };
  MPI_Comm local = MPI_COMM_NULL;
  int code = MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &local);
  if (code != MPI_SUCCESS) return failed(code);
  MPI_Comm_size(local, &local_size);
  MPI_Comm_free(&local);

  // Rank 0 creates the memory; the others open it through /proc, so that it has no name to leak.
  struct {
    int64_t pid, fd, mark;
  } where = {getpid(), -1, now_ns() ^ int64_t{getpid()} << 40};
  const size_t bytes = sizeof(RankSlot) * (static_cast<size_t>(size) + 1);
  int fd = -1;
  if (rank == 0) {
    fd = memfd_create("coupler-mpi", MFD_CLOEXEC);
    if (fd >= 0 && ftruncate(fd, static_cast<off_t>(bytes)) == 0) where.fd = fd;
  }
  code = MPI_Bcast(&where, 3, MPI_INT64_T, 0, comm);
  if (code != MPI_SUCCESS) return failed(code);
  if (rank != 0 && where.fd >= 0) {
    const std::string path =
        "/proc/" + std::to_string(where.pid) + "/fd/" + std::to_string(where.fd);
    fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  }
  void* memory = MAP_FAILED;
  if (fd >= 0 && where.fd >= 0)
    memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  auto* const slots = static_cast<RankSlot*>(memory);
  if (memory != MAP_FAILED) {
    (new (&slots[rank]) RankSlot)->pid = getpid();
    // The line after the last holds a mark that shows whether all ranks mapped the same memory.
    if (rank == 0) slots[size].fingerprints[0].what.store(static_cast<uint64_t>(where.mark));
  }
  int code_sum = local_size == size && memory != MAP_FAILED ? 1 : 0, good = 0;
  code = MPI_Allreduce(&code_sum, &good, 1, MPI_INT, MPI_MIN, comm);
  if (good == 1) {
    const bool same = slots[size].fingerprints[0].what.load() == static_cast<uint64_t>(where.mark);
    code_sum = same ? 1 : 0;
    code = MPI_Allreduce(&code_sum, &good, 1, MPI_INT, MPI_MIN, comm);
  }
  if (fd >= 0) close(fd);
  if (good == 1 && code == MPI_SUCCESS) {
    const bool oversubscribed = size > sysconf(_SC_NPROCESSORS_ONLN);
    *entry_barrier =
        std::unique_ptr<EntryBarrier>(new EntryBarrier(memory, bytes, rank, size, oversubscribed));
    return {};
  }
  if (memory != MAP_FAILED) munmap(memory, bytes);
  return code == MPI_SUCCESS ? Failure{} : failed(code);
}

Failure EntryBarrier::enter(const Op& op) {
  RankSlot* const mine = slot(rank_);
  const uint32_t number = number_.load(std::memory_order_relaxed) + 1;
  number_.store(number, std::memory_order_relaxed);
  const Fingerprint called = fingerprint(op, size_);
  SharedFingerprint& print = mine->fingerprints[number % 2];
  print.what.store(called.what, std::memory_order_relaxed);
  print.size.store(called.size, std::memory_order_relaxed);
  mine->arrived.store(number, std::memory_order_seq_cst);
  if (mine->sleepers.load(std::memory_order_seq_cst) != 0) futex_wake(&mine->arrived);
  for (int32_t peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    RankSlot* const theirs = slot(peer);
    if (static_cast<int32_t>(theirs->arrived.load(std::memory_order_acquire) - number) < 0) {
      Failure failure = wait_for(peer, number, op);
      if (!failure.ok()) {
        withdraw(number);
        return failure;
      }
    }
    const SharedFingerprint& other = theirs->fingerprints[number % 2];
    const Fingerprint theirs_called{other.what.load(std::memory_order_relaxed),
                                    other.size.load(std::memory_order_relaxed)};
    if (theirs_called == called) {
      if (!is_gone(peer, number)) continue;
      withdraw(number);
      return lost(peer, op);
    }
    withdraw(number);
    return disagreement(number, rank_, called, peer, theirs_called);
  }
  return {};
}

Failure EntryBarrier::wait_for(int32_t peer, uint32_t number, const Op& op) {
  RankSlot* const theirs = slot(peer);
  const auto come = [&] {
    return static_cast<int32_t>(theirs->arrived.load(std::memory_order_acquire) - number) >= 0;
  };
  const int64_t begin = now_ns();
  const int64_t spin = is_contended(begin) ? 0
                       : oversubscribed_   ? kOversubscribedSpinNs
                       : op.blocking       ? kSpinNs
                                           : kWorkerSpinNs;
  for (int64_t last = begin, now = begin; now - begin < spin; last = now) {
    for (int i = 0; i < (oversubscribed_ ? 1 : 8); ++i) {
      if (come()) return {};
      oversubscribed_ ? static_cast<void>(sched_yield()) : cpu_pause();
    }
    now = now_ns();
    note_polling(last, now);
  }
  theirs->sleepers.fetch_add(1, std::memory_order_seq_cst);
  Failure failure;
  while (!come()) {
    const uint32_t seen = theirs->arrived.load(std::memory_order_seq_cst);
    if (static_cast<int32_t>(seen - number) >= 0) break;
    const int64_t left = op.deadline_ns - now_ns();
    if (slot(rank_)->gone.load(std::memory_order_acquire) != 0) {
      failure =
          Failure::make(DB_ERR_ABORTED, describe(op) + ": abort was called", DB_ERROR_COMM_DEAD);
    } else if (is_gone(peer, number) || has_died(theirs->pid)) {
      if (come()) break;
      failure = lost(peer, op);
    } else if (left <= 0) {
      failure = Failure::make(
          DB_ERR_TIMEOUT,
          describe(op) + ": rank " + std::to_string(peer) + " has not joined it within " +
              std::to_string(op.timeout_ns / 1'000'000) +
              " ms; it is slower, stuck, or takes another path through the program",
          DB_ERROR_COMM_DEAD, peer);
    }
    if (!failure.ok()) break;
    futex_wait(&theirs->arrived, seen, std::min(left, kSliceNs));
  }
  theirs->sleepers.fetch_sub(1, std::memory_order_relaxed);
  return failure;
}

Failure EntryBarrier::lost(int32_t peer, const Op& op) const {
  const int32_t pid = slot(peer)->pid;
  const std::string who = describe(op) + ": rank " + std::to_string(peer);
  if (has_died(pid))
    return Failure::make(DB_ERR_PEER_LOST,
                         who + " has exited (process " + std::to_string(pid) + ")",
                         DB_ERROR_COMM_DEAD, peer);
  return Failure::make(
      DB_ERR_PEER_LOST,
      who + " has left the communicator, after an error of its own or by destroying it",
      uint32_t{DB_ERROR_COMM_DEAD} | uint32_t{DB_ERROR_REMOTE}, peer);
}

bool EntryBarrier::is_gone(int32_t rank, uint32_t number) const {
  const uint64_t gone = slot(rank)->gone.load(std::memory_order_acquire);
  return gone != 0 && static_cast<int32_t>(number - static_cast<uint32_t>(gone)) >= 0;
}

void EntryBarrier::withdraw(uint32_t from) {
  RankSlot* const mine = slot(rank_);
  uint64_t there = 0;
  mine->gone.compare_exchange_strong(there, kGone | from, std::memory_order_seq_cst);
  futex_wake(&mine->arrived);
}

}  // namespace db::mpi

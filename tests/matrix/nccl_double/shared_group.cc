#include "shared_group.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace nccl_double {

bool wait_until(const Aborted& aborted, const std::function<bool()>& condition) {
  for (int round = 0; !condition(); ++round) {
    if (aborted.load()) return false;
    if (round < 20) {
      sched_yield();
    } else {
      const timespec pause = {0, round < 200 ? 30'000 : 500'000};
      nanosleep(&pause, nullptr);
    }
  }
  return true;
}

struct SharedGroup::Barrier {
  std::atomic<uint64_t> arrived;
};

struct SharedGroup::Header {
  Barrier attached, meeting, connecting, stepping;
};

struct SharedGroup::Member {
  char gpu[128];
  int color, key;
  alignas(64) char slot[kSlot];
};

struct SharedGroup::Pair {
  std::atomic<uint32_t> sender, receiver;  // connected
  std::atomic<uint64_t> filled;            // bytes in piece, 0: free
  char piece[kPiece];
};

size_t SharedGroup::bytes(int size) {
  const auto n = static_cast<size_t>(size);
  return sizeof(Header) + 64 + n * sizeof(Member) + n * n * sizeof(Pair);
}

SharedGroup::SharedGroup(void* memory, int rank, int size)
    : memory_(memory), rank_(rank), size_(size) {}

SharedGroup::~SharedGroup() { munmap(memory_, bytes(size_)); }

SharedGroup::Header& SharedGroup::header() const { return *static_cast<Header*>(memory_); }
SharedGroup::Member& SharedGroup::member(int rank) const {
  char* const members = static_cast<char*>(memory_) + (sizeof(Header) + 63) / 64 * 64;
  return reinterpret_cast<Member*>(members)[rank];
}
SharedGroup::Pair& SharedGroup::pair(int from, int to) const {
  return reinterpret_cast<Pair*>(&member(size_))[from * size_ + to];
}
SharedGroup::Pair& SharedGroup::pair_of(const Message& m) const {
  return m.sends ? pair(rank_, m.peer) : pair(m.peer, rank_);
}

std::unique_ptr<SharedGroup> SharedGroup::attach(const std::string& name, int rank, int size,
                                                 const std::string& gpu, const Aborted& aborted,
                                                 int* same_gpu) {
  const std::string path = "/nccl-double-" + name;
  const int fd = shm_open(path.c_str(), O_RDWR | O_CREAT, 0600);
  void* memory = MAP_FAILED;
  if (fd >= 0 && ftruncate(fd, static_cast<off_t>(bytes(size))) == 0)
    memory = mmap(nullptr, bytes(size), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (fd >= 0) close(fd);
  if (memory == MAP_FAILED) {
    std::perror("nccl_double: shared memory");
    std::abort();
  }
  std::unique_ptr<SharedGroup> group(new SharedGroup(memory, rank, size));
  std::snprintf(group->member(rank).gpu, sizeof(Member::gpu), "%s", gpu.c_str());
  const auto all = static_cast<uint64_t>(size);
  Barrier& attached = group->header().attached;
  attached.arrived.fetch_add(1);
  const bool met = wait_until(aborted, [&] { return attached.arrived.load() >= all; });
  shm_unlink(path.c_str());  // the first rank removes it, the others find nothing
  if (!met) return nullptr;
  *same_gpu = -1;
  for (int other = 0; other < size; ++other)
    if (other != rank && gpu == group->member(other).gpu) *same_gpu = other;
  return group;
}

bool SharedGroup::pass(Barrier& barrier, uint64_t* passed, const Aborted& aborted) {
  barrier.arrived.fetch_add(1);
  const uint64_t all = ++*passed * static_cast<uint64_t>(size_);
  return wait_until(aborted, [&] { return barrier.arrived.load() >= all; });
}

bool SharedGroup::meet(const Aborted& aborted) { return pass(header().meeting, &met_, aborted); }
bool SharedGroup::step(const Aborted& aborted) {
  return pass(header().stepping, &stepped_, aborted);
}

bool SharedGroup::connect(const Aborted& aborted) {
  return connected_ > 0 || pass(header().connecting, &connected_, aborted);
}

void SharedGroup::announce(const Message& message) {
  (message.sends ? pair_of(message).sender : pair_of(message).receiver).store(1);
}

bool SharedGroup::connect(const Message& message, const Aborted& aborted) {
  const Pair& pair = pair_of(message);
  return wait_until(aborted,
                    [&] { return (message.sends ? pair.receiver : pair.sender).load() != 0; });
}

void SharedGroup::choose(int color, int key) {
  member(rank_).color = color;
  member(rank_).key = key;
}
int SharedGroup::color(int rank) const { return member(rank).color; }
int SharedGroup::key(int rank) const { return member(rank).key; }
char* SharedGroup::slot(int rank) const { return member(rank).slot; }

bool SharedGroup::exchange(std::vector<Message> messages, const Aborted& aborted) {
  // Each round moves what can be moved; messages to (or from) one peer are moved in order.
  const auto move = [&](size_t index) {
    Message& m = messages[index];
    for (size_t earlier = 0; earlier < index; ++earlier) {
      const Message& e = messages[earlier];
      if (e.bytes > 0 && e.peer == m.peer && e.sends == m.sends) return;
    }
    Pair& pair = pair_of(m);
    const uint64_t filled = pair.filled.load();
    if (m.bytes == 0 || (filled == 0) != m.sends) return;
    const size_t piece = m.sends ? std::min(m.bytes, kPiece) : filled;
    // The sender sends more than the receiver expects: the rest hangs, as with NCCL.
    if (piece > m.bytes) return;
    if (m.sends) {
      std::memcpy(pair.piece, m.data, piece);
      pair.filled.store(piece);
    } else {
      std::memcpy(m.data, pair.piece, piece);
      pair.filled.store(0);
    }
    m.data += piece;
    m.bytes -= piece;
  };
  return wait_until(aborted, [&] {
    bool over = true;
    for (size_t i = 0; i < messages.size(); ++i) {
      move(i);
      over = over && messages[i].bytes == 0;
    }
    return over;
  });
}

}  // namespace nccl_double

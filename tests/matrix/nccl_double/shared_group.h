// SharedGroup: the memory that the ranks of one communicator of the NCCL double share. Each rank
// has one. Every wait ends when `aborted` is set, and then returns false. The collectives and
// exchange() of one rank must not overlap, as on a GPU's stream; meet() is for the rank's host
// side.
#pragma once

#include <nccl.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace nccl_double {

using Aborted = std::atomic<bool>;

// A wait of the double: sleeps between looks. False: aborted.
bool wait_until(const Aborted& aborted, const std::function<bool()>& condition);

struct Message {
  int peer = 0;
  bool sends = false;
  char* data = nullptr;
  size_t bytes = 0;
};

class SharedGroup {
 public:
  // Waits for the other ranks. *same_gpu: another rank with the same GPU; -1: none.
  static std::unique_ptr<SharedGroup> attach(const std::string& name, int rank, int size,
                                             const std::string& gpu, const Aborted& aborted,
                                             int* same_gpu);
  ~SharedGroup();
  SharedGroup(const SharedGroup&) = delete;
  SharedGroup& operator=(const SharedGroup&) = delete;

  bool meet(const Aborted& aborted);                             // a barrier of the host sides
  bool connect(const Aborted& aborted);                          // before the first collective
  bool connect(const Message& message, const Aborted& aborted);  // before the first of its kind
  void announce(const Message& message);
  void choose(int color, int key);  // for ncclCommSplit, before meet()
  int color(int rank) const;
  int key(int rank) const;

  static constexpr size_t kSlot = size_t{128} << 10;
  char* slot(int rank) const;
  bool step(const Aborted& aborted);  // a barrier of the streams

  // Exchanges all messages concurrently.
  bool exchange(std::vector<Message> messages, const Aborted& aborted);

 private:
  static constexpr size_t kPiece = size_t{32} << 10;
  struct Member;
  struct Pair;
  struct Barrier;
  struct Header;
  SharedGroup(void* memory, int rank, int size);
  static size_t bytes(int size);
  bool pass(Barrier& barrier, uint64_t* passed, const Aborted& aborted);
  Header& header() const;
  Member& member(int rank) const;
  Pair& pair(int from, int to) const;
  Pair& pair_of(const Message& message) const;

  void* const memory_;
  const int rank_, size_;
  uint64_t met_ = 0, connected_ = 0, stepped_ = 0;
};

}  // namespace nccl_double

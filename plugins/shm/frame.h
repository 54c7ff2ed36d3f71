// Frames: what two ranks say to each other over an authenticated Unix socket while they set up a
// communicator: a message of fixed size, with file descriptors attached. Thread rule: one thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "common/error.h"
#include "common/local_socket.h"

namespace db::shm {

struct Frame {
  int32_t status = DB_OK;  // negative: the sender gives up, and says why
  int32_t failed_rank = -1;
  int32_t native_code = 0;
  int32_t descriptors = 0;   // attached
  int32_t pid = 0;           // the sender's
  int32_t node = 0;          // the NUMA node it runs on
  uint64_t arena_bytes = 0;  // with the segment: of each rank's arena in its file
  std::array<char, 480> text{};

  static Frame of(const Failure& failure);
  Failure failure() const;
};
static_assert(sizeof(Frame) == 512);

// At most 200 descriptors; the kernel takes 253.
inline constexpr size_t kMostDescriptors = 200;

// Both block until the deadline. peer: the rank at the other end, for errors.
Failure send_frame(const Descriptor& socket, Frame frame, const std::vector<int>& descriptors,
                   int32_t peer, int64_t deadline_ns);
// Fails with what the sender says if it gives up. descriptors: the received ones are appended.
Failure receive_frame(const Descriptor& socket, Frame* frame, std::vector<Descriptor>* descriptors,
                      int32_t peer, int64_t deadline_ns);

}  // namespace db::shm

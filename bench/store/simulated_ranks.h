// Simulates thousands of ranks of one job's store in one process, with one real socket each, driven
// by epoll in a few threads. Each rank connects, authenticates, sets a value, makes the requests of
// the meeting, and checks every reply, including MACs. Used by one thread.
#pragma once

#include <cstddef>
#include <string>

#include "base/sha256.h"

namespace coupler {

struct RendezvousPlan {
  enum class Kind {
    kAll,       // each rank gets all ranks' values in one request
    kVerdict,   // rank 0 gets all values in one request and sets a verdict for the others
    kOneByOne,  // as kVerdict, but rank 0 requests the values one by one
  };
  Kind kind = Kind::kAll;
  int ranks = 1000;
  int threads = 1;
  size_t value_bytes = 64;
  std::string name = "meet";  // prefix of the keys
};

struct RendezvousResult {
  double seconds = 0;   // from the first connect to the last rank's last answer
  int met = 0;          // ranks that got all correct replies
  std::string problem;  // the first problem
};

RendezvousResult meet(const std::string& host, int port, const Bytes32& secret,
                      const RendezvousPlan& plan);

// The value that a rank sets and the others expect.
std::string value_of_rank(int rank, size_t bytes);

}  // namespace coupler

// SimulatedRanks: thousands of members of one job's store in one process, as many real sockets,
// driven by epoll in a few threads. Each rank connects, proves itself, sets a value, asks for what
// the meeting needs, and checks everything it is answered, MACs included. Used by one thread.
#pragma once

#include <cstddef>
#include <string>

#include "rendezvous/secret.h"

namespace coupler {

struct MeetingPlan {
  enum class Kind {
    kAll,       // each rank gets all ranks' values, in one request
    kVerdict,   // rank 0 gets all values in one request, the others a verdict it then sets
    kOneByOne,  // as kVerdict, but rank 0 asks for each value alone, one after another
  };
  Kind kind = Kind::kAll;
  int ranks = 1000;
  int threads = 1;
  size_t value_bytes = 64;
  std::string name = "meet";  // of the keys
};

struct MeetingResult {
  double seconds = 0;   // from the first connect to the last rank's last answer
  int met = 0;          // ranks that got everything, and right
  std::string problem;  // the first one
};

MeetingResult meet(const std::string& host, int port, const Bytes32& secret,
                   const MeetingPlan& plan);

// What rank sets, and the others expect.
std::string value_of_rank(int rank, size_t bytes);

}  // namespace coupler

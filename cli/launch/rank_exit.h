// How ranks ended, and which of them caused the failure. Values and pure functions; JobOutcome is
// single-threaded.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/socket.h"
#include "store/peers.h"

namespace coupler::cli {

// The variable that gives the user's LD_LIBRARY_PATH to shims, if it is set.
inline constexpr const char* kShimLibraryPath = "COUPLER_SHIM_LIBRARY_PATH";

struct RankExit {
  int rank = 0;
  int status = 0;         // as of waitpid
  std::string lost = {};  // why the job gave up a rank that has not ended; "": it has ended
  bool stopped = false;   // it ended after it was ordered to stop
  std::deque<std::string> last_lines = {};
  Deadline when = {};  // when the launcher learned of it
};

int exit_code_of(int status);             // 0…255; 128 + signal
std::string describe_status(int status);  // "exited with code 3", "was killed by signal 9 (Killed)"

// The store keys under which a rank-shim reports its rank's process id, and its end; encode() makes
// the latter's value.
inline constexpr std::string_view kStartPrefix = "coupler/launch/start/";
inline constexpr std::string_view kEndPrefix = "coupler/launch/end/";
std::string start_key(int rank);
std::string exit_key(int rank);
// The rank in a key with that prefix; null for other keys.
std::optional<int> rank_in(std::string_view prefix, std::string_view key);
std::string encode(const RankExit& end);
RankExit decode_exit(int rank, const std::string& text);

// The launcher orders all rank-shims to forward a signal, or (0) to end their programs and
// themselves. The orders of a job are numbered from 0, each under its own key.
std::string order_key(int number);

class JobOutcome {
 public:
  void record(RankExit end);
  // The order in which ranks ended, if known: ends may be recorded in another order.
  void record_order(const std::vector<int>& ranks);
  // Returns what to print about them immediately; report() does not repeat it.
  std::string record_losses(const std::vector<store::PeerLoss>& losses);
  // When the first rank failed, if any did; and when the first rank failed by itself, not because
  // it lost a peer.
  std::optional<Deadline> first_failure() const;
  std::optional<Deadline> first_cause() const;
  bool knows(int rank) const;

  // The failure that caused the others: the first among ranks not ordered to stop, preferring any
  // other failure over a lost peer (exit code 4). Null if no rank failed.
  const RankExit* cause() const;
  int exit_code() const;  // the cause's, else 0

  // For programs: {"rank": 1, "exit_code": 137, "how": "was killed by …"} of the cause; "" if no
  // rank failed.
  std::string json() const;

  // "coupler: rank 1 was killed by …" with its last lines, one line for each other failure, and the
  // operations that other ranks were in (standings, by rank).
  std::string report(const std::map<int, std::string>& activities = {}) const;

 private:
  std::vector<RankExit> ends_;  // in the order of their arrival
  std::vector<int> order_;      // ranks, in the order in which they ended
};

// "  its last lines:" and the lines, or nothing.
std::string quote_lines(const std::deque<std::string>& lines);

}  // namespace coupler::cli

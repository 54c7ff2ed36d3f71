// How ranks ended, and which of them is to blame. Values and pure functions; a JobOutcome is
// single-threaded.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/peers.h"
#include "rendezvous/socket_io.h"

namespace coupler::cli {

// The variable in which the launcher tells shims the user's LD_LIBRARY_PATH, where it is set.
inline constexpr const char* kShimLibraryPath = "COUPLER_SHIM_LIBRARY_PATH";

struct RankEnd {
  int rank = 0;
  int status = 0;         // as of waitpid
  std::string lost = {};  // not ended, but given up by the job: how
  bool stopped = false;   // after it had been told to stop
  std::deque<std::string> last_lines = {};
  Deadline when = {};  // when the launcher learned of it
};

int exit_code_of(int status);             // 0…255; 128 + signal
std::string describe_status(int status);  // "exited with code 3", "was killed by signal 9 (Killed)"

// The store's key under which a rank-shim reports its rank's end, and the value.
std::string end_key(int rank);
std::optional<int> rank_of_end_key(const std::string& key);
// The key under which it reports its rank's process id.
std::string start_key(int rank);
std::optional<int> rank_of_start_key(const std::string& key);
// Of standing_key() (rendezvous/store.h).
std::optional<int> rank_of_standing_key(const std::string& key);
std::string encode(const RankEnd& end);
RankEnd decode_end(int rank, const std::string& text);

// What the launcher tells all rank-shims: to pass a signal on, or (0) to end their programs and
// themselves. The orders of a job are numbered from 0, each under a key of its own.
struct ShimOrder {
  int signal = 0;
};
std::string order_key(int number);
std::string encode(const ShimOrder& order);
ShimOrder decode_order(const std::string& text);

class JobOutcome {
 public:
  void record(RankEnd end);
  // The order in which ranks ended, where that is known: ends may be recorded in another one.
  void record_order(const std::vector<int>& ranks);
  // Returns what is to be said of them at once; report() does not repeat it.
  std::string record_losses(const std::vector<PeerLoss>& losses);
  // When the first rank failed, if any did; and the first that failed by itself, not for the loss
  // of a peer.
  std::optional<Deadline> first_failure() const;
  std::optional<Deadline> first_cause() const;
  bool knows(int rank) const;

  // The failure that caused the others: the first of those who were not told to stop, where one who
  // lost a peer (exit code 4) gives way to one who failed otherwise. Null: nobody failed.
  const RankEnd* cause() const;
  int exit_code() const;  // the cause's, else 0

  // For programs: {"rank": 1, "exit_code": 137, "how": "was killed by …"} of the cause; "" where
  // nobody failed.
  std::string json() const;

  // "coupler: rank 1 was killed by …" with its last lines, one line for each other failure, and
  // what others were in (by rank).
  std::string report(const std::map<int, std::string>& standings = {}) const;

 private:
  std::string record_loss(const PeerLoss& loss);

  std::vector<RankEnd> ends_;  // as they came
  std::vector<int> order_;     // ranks
};

// "  its last lines:" and the lines, or nothing.
std::string quote_lines(const std::deque<std::string>& lines);

}  // namespace coupler::cli

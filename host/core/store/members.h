// StoreMembers: which ranks of the job are present, as the store's server sees it. Each rank
// declares itself on its connection and answers requests for a sign of life. Lives on the server's
// io thread.
//
// A rank whose connection closes without a goodbye is lost at once. A silent peer is judged
// (failure_detector.h) once it has lasted; time in which this thread itself was held up does not
// count. Processes of this machine are also watched before they join and after they have left: one
// that is stopped then would never end.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/process.h"
#include "store/failure_detector.h"
#include "store/peers.h"
#include "store/server.h"
#include "store/wire.h"

namespace coupler::store {

struct StoreHub;

class StoreMembers {
 public:
  StoreMembers(StoreHub& hub, boost::asio::io_context& io);

  // A process of this machine that is to become that rank: it may be stopped before it joins.
  void watch(int rank, ProcessIdentity process);

  // The answer to kJoin: kRefused with the reason, or kOk with what the client needs to know.
  store_wire::Reply join(uint64_t session, const store_wire::Request& request);
  void heard(uint64_t session);
  void leave(uint64_t session, bool failed);
  void closed(uint64_t session);

  // From now on no loss is reported: the server is ending.
  void stop();

 private:
  using Clock = std::chrono::steady_clock;
  struct Member {
    ProcessIdentity process;
    bool here = false;                               // on this machine
    std::map<uint64_t, Clock::time_point> sessions;  // when each was last heard from
    Clock::time_point running;  // without a session: when last seen not stopped
    std::optional<PeerLoss> loss;
  };

  // How long silence is tolerated: backend.peer_timeout, longer for very many members.
  std::chrono::milliseconds limit() const;
  std::chrono::milliseconds tick() const { return store_wire::tick_of(limit()); }
  void tick_later();
  void check(Clock::time_point now);
  void check_member(int rank, Member& member, Clock::time_point now);
  // Removes the session; returns the rank it belonged to, if it had joined.
  std::optional<int> remove_session(uint64_t session);
  void lose(int rank, PeerLoss::Reason reason);
  void notify_left();
  void notify(const store_wire::Reply& event, uint64_t except);

  StoreHub& hub_;
  boost::asio::steady_timer timer_;
  // Thousands of ranks leave at the end of a job: clients are notified of many at once.
  boost::asio::steady_timer leaving_timer_;
  std::vector<int> leaving_;
  bool ticking_ = false;
  bool stopped_ = false;
  bool ask_ = false;  // in this check
  LocalPauses local_pauses_;
  const std::string machine_ = machine_identity();
  std::map<int, Member> members_;            // by rank
  std::unordered_map<uint64_t, int> ranks_;  // by session
};

}  // namespace coupler::store

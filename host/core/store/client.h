// StoreClient: a connection to a StoreServer. [any-thread]: requests of several threads share one
// socket, a separate thread receives the replies, and a get() that waits blocks only its caller.
//
// Once the server is gone, every pending and later call throws Error(kPeerLost) naming its address.
// Once a rank is lost, waiting for keys that are not set yet ends with that error, too: see join().
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>

#include "base/sha256.h"
#include "store/failure_detector.h"
#include "store/link.h"
#include "store/peers.h"
#include "store/store.h"
#include "store/wire.h"

namespace coupler::store {

class StoreClient : public Store {
 public:
  // Connects and authenticates both sides. host and port: StoreServer's, or a name of its machine.
  // Throws Error(kTimeout, kPeerLost) if there is no answer in time, and Error(kPeerLost) if the
  // other side does not know the secret or, on a Unix socket, belongs to another user. timeout
  // bounds connecting and, later, each set() and add(). With tls, a server without TLS is rejected.
  // kWhenItListens: the server may not be up yet; retries while the connection is refused.
  enum class Start { kNow, kWhenItListens };
  StoreClient(const std::string& host, int port, const Bytes32& secret,
              std::chrono::nanoseconds timeout, bool tls = false, Start start = Start::kNow);
  ~StoreClient() override;

  void set(const std::string& key, const std::string& value) override;
  std::optional<std::string> get(const std::string& key, std::chrono::nanoseconds timeout) override;
  std::vector<std::optional<std::string>> get_ranks(const std::string& prefix, int count,
                                                    std::chrono::nanoseconds timeout) override;
  int64_t add(const std::string& key, int64_t delta) override;

  // Declares this process to be that rank of the job until the client is destroyed: the other ranks
  // learn if it is lost, and peers() reports theirs. At most once. Throws Error(kInvalidArgument)
  // if the job has given that rank up, or another process already is that rank.
  void join(int rank);
  std::shared_ptr<Peers> peers() const override;  // knows nothing before join()
  std::optional<Bytes32> derived_key(std::string_view purpose) const override;

 protected:
  // Tells the server that this rank is done, so that the others do not miss it. Never throws.
  void leave();

 private:
  using Clock = std::chrono::steady_clock;
  struct Pending {
    std::condition_variable done;
    std::optional<store_wire::Reply> reply;
  };

  void connect(const Bytes32& secret, Deadline deadline, Start start);
  bool handshake(const Bytes32& secret, Deadline deadline);
  [[noreturn]] void throw_no_answer(const std::string& call, const std::string& key) const;
  [[noreturn]] void throw_peer_lost(const std::string& key, const PeerLoss& loss) const;
  void cancel(uint64_t id);
  void read_replies();
  bool read_frame(std::string& frame);  // false: the connection is lost
  bool take_reply(const std::string& frame);
  void take_event(const store_wire::Reply& event);
  void check_host(Clock::time_point& heard, LocalPauses& local_pauses);
  void lose_peer(PeerLoss loss);
  void mark_returned(int rank);
  void send_activity();
  void try_send(const store_wire::Request& request);  // never waits for the server to read
  // Sends the request, waits for its reply; nullopt when the deadline has passed.
  std::optional<store_wire::Reply> exchange(store_wire::Request& request, Deadline deadline);
  void send_frame(const store_wire::Request& request, Deadline deadline);
  void lose(const std::string& reason);
  [[noreturn]] void throw_lost(const std::string& reason) const;

  const std::string address_;  // host:port, or a path; for messages
  const std::string host_;
  const int port_;
  const std::chrono::nanoseconds timeout_;
  const Bytes32 derivation_key_;         // derived_key()'s base, not the secret itself
  const std::unique_ptr<StoreTls> tls_;  // null: plain
  const std::shared_ptr<Peers> peers_ = std::make_shared<Peers>();
  std::unique_ptr<StoreLink> link_;
  std::optional<store_wire::FrameOpener> opener_;  // the reading thread's

  std::mutex send_mutex_;  // guards the order of frames on the socket
  std::optional<store_wire::FrameSealer> sealer_;

  std::mutex mutex_;  // guards what follows
  std::unordered_map<uint64_t, Pending*> pending_;
  uint64_t next_id_ = 1;
  std::string lost_;                          // why the connection ended; empty while it lives
  std::optional<store_wire::Joined> joined_;  // from join() on
  int rank_ = -1;                             // from join() on
  std::optional<PeerLoss> peer_loss_;         // the first other than kLeft

  std::thread reader_;
};

}  // namespace coupler::store

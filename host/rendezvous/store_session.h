// StoreSession: one connection of the store's server, from its first byte to its end; StoreHub:
// what the sessions share. Both live on the server's io thread only.
#pragma once

#include <array>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>

#include "rendezvous/store_server.h"
#include "rendezvous/store_wire.h"

namespace coupler {

class StoreSession;

struct StoreHub {
  StoreHub(const Bytes32& job_secret, const StoreServerOptions& server_options)
      : secret(job_secret), options(server_options), table(server_options.limits) {}

  // Makes room for one more stranger by dropping the oldest ones.
  void limit_strangers(size_t most);

  const Bytes32 secret;
  const StoreServerOptions options;
  StoreTable table;
  std::map<uint64_t, std::shared_ptr<StoreSession>> sessions;  // by id, which grows with time
  std::set<uint64_t> strangers;                                // ids of those not authenticated
  uint64_t next_id = 0;
  uint64_t refused = 0;  // strangers with a wrong proof
  std::atomic<size_t> clients{0};
};

class StoreSession : public std::enable_shared_from_this<StoreSession> {
 public:
  StoreSession(StoreHub& hub, boost::asio::ip::tcp::socket socket);

  void start();
  void close();  // idempotent; the session leaves the hub
  void answer(const store_wire::Reply& reply);
  void answer_wait(uint64_t request, const std::string& value);

 private:
  void on_proof();
  void read_length();
  void read_frame(uint32_t length);
  void on_frame();
  void handle(store_wire::Request request);
  void handle_set(store_wire::Request& request);
  void handle_get(const store_wire::Request& request);
  void send(std::string bytes);
  void write_next();

  StoreHub& hub_;
  const uint64_t id_;
  boost::asio::ip::tcp::socket socket_;
  boost::asio::steady_timer timer_;
  bool closed_ = false;
  bool authenticated_ = false;
  Bytes32 nonce_{};
  std::array<uint8_t, store_wire::kProofSize> proof_{};
  std::optional<store_wire::FrameOpener> opener_;
  std::optional<store_wire::FrameSealer> sealer_;
  std::array<uint8_t, 4> length_{};
  std::string incoming_;
  std::deque<std::string> outgoing_;
  size_t outgoing_bytes_ = 0;
  bool reading_paused_ = false;
  std::unordered_map<uint64_t, std::string> waits_;  // request -> key
};

}  // namespace coupler

// StoreSession: one connection of the store's server, from its first byte to its end; StoreHub:
// what the sessions share. Both live on the server's io thread only.
#pragma once

#include <array>
#include <atomic>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <variant>

#include "store/link.h"
#include "store/members.h"
#include "store/server.h"
#include "store/wire.h"

namespace coupler::store {

class StoreSession;

struct StoreHub {
  StoreHub(const Bytes32& job_secret, const StoreServerOptions& server_options,
           boost::asio::io_context& io);

  // Drops the oldest unauthenticated connections until at most that many are left.
  void limit_unauthenticated(size_t most);
  // How many there may be. Members that are still to come are unauthenticated at first.
  size_t max_unauthenticated() const;

  const Bytes32 secret;
  const StoreServerOptions options;
  std::optional<StoreTls> tls;
  StoreTable table;
  std::map<uint64_t, std::shared_ptr<StoreSession>> sessions;  // by id; later ids are larger
  std::set<uint64_t> unauthenticated;                          // ids of those not authenticated
  size_t descriptors = 0;  // that unauthenticated connections may use together
  uint64_t next_id = 1;    // 0: no session
  uint64_t refused = 0;    // connections with a wrong proof
  uint64_t dropped = 0;    // connections that did not prove themselves in time, or were displaced
  std::atomic<size_t> clients{0};
  StoreMembers members;
};

class StoreSession : public std::enable_shared_from_this<StoreSession> {
 public:
  StoreSession(StoreHub& hub, StoreStream::Socket socket);

  void start();
  void close();  // idempotent; the session leaves the hub
  void answer(const store_wire::Reply& reply);
  int socket() { return stream_.native_handle(); }
  bool idle() const { return outgoing_.empty(); }  // nothing is being sent to the client
  void answer_wait(uint64_t request, const std::string& value);
  void answer_wait(uint64_t request, const std::shared_ptr<const StoreTable::RankValues>& values);

 private:
  // A part of the outgoing data: owned by this session, or shared with others.
  struct Piece {
    std::string own;
    std::shared_ptr<const StoreTable::RankValues> shared;

    const std::string& text() const { return shared ? shared->encoded : own; }
  };

  void greet();
  void on_proof();
  void refuse(store_wire::Refusal reason);
  void read_length();
  void read_frame(uint32_t length);
  void on_frame();
  void handle(store_wire::Request request);
  void handle_set(store_wire::Request& request);
  void handle_get(const store_wire::Request& request);
  void handle_get_ranks(const store_wire::Request& request);
  void forget(uint64_t request);
  void answer_ranks(uint64_t request, const std::shared_ptr<const StoreTable::RankValues>& values);
  void send(Piece piece);
  void send(std::string bytes) { send(Piece{std::move(bytes), nullptr}); }
  void write_next();

  StoreHub& hub_;
  const uint64_t id_;
  StoreStream stream_;
  boost::asio::steady_timer timer_;
  bool closed_ = false;
  bool authenticated_ = false;
  bool refused_ = false;  // closed once the refusal is sent
  Bytes32 nonce_{};
  std::array<uint8_t, store_wire::kProofSize> proof_{};
  std::optional<store_wire::FrameOpener> opener_;
  std::optional<store_wire::FrameSealer> sealer_;
  std::array<uint8_t, 4> length_{};
  std::string incoming_;
  std::deque<Piece> outgoing_;
  size_t writing_ = 0;  // how many of outgoing_ are being sent
  size_t outgoing_bytes_ = 0;
  bool reading_paused_ = false;
  std::unordered_map<uint64_t, std::variant<std::string, StoreTable::Ranks>> waits_;  // by request
};

}  // namespace coupler::store

// The protocol between the store's server and its clients. Plain functions and values; a
// FrameSealer or FrameOpener belongs to one direction of one connection and one thread at a time.
//
//   server -> client   magic "CPLRSTR3", server nonce (32)
//   client -> server   client nonce (32), HMAC(secret, "client" + both nonces)
//   server -> client   HMAC(secret, "server" + both nonces), or a refusal (32)
//
// Then frames in both directions: length (4), body (length), MAC (32). The MAC covers a sequence
// number that is not sent, the length and the SHA-256 of the body, under a key of this connection
// and direction, so that a frame cannot be forged, altered, replayed, reordered, reflected or
// dropped. It covers the body's digest, so that a reply to thousands is hashed once. Numbers are
// little-endian.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/process.h"
#include "base/sha256.h"

namespace coupler::store_wire {

constexpr std::string_view kMagic = "CPLRSTR3";
constexpr size_t kHelloSize = 8 + 32;  // magic, nonce
constexpr size_t kProofSize = 32 + 32;
constexpr size_t kMacSize = 32;

constexpr size_t kMaxKey = 1024;
constexpr size_t kMaxValue = 8u << 20;
constexpr size_t kMaxFrame = 9u << 20;
constexpr uint32_t kMaxRanks = 65536;  // in one kGetRanks

enum class Side { kClient, kServer };
// The proof that a side knows the secret.
Bytes32 proof(const Bytes32& secret, Side side, const Bytes32& server_nonce,
              const Bytes32& client_nonce);
// The key of the frames that side sends.
Bytes32 frame_key(const Bytes32& secret, Side side, const Bytes32& server_nonce,
                  const Bytes32& client_nonce);

// What a server answers instead of its proof, so that a client of another job need not retry.
// Anyone can send it: its only effect is that of closing the connection.
enum class Refusal { kSecret, kFull };
Bytes32 refusal(Refusal reason);

// Makes the frames of one direction.
class FrameSealer {
 public:
  explicit FrameSealer(const Bytes32& key) : key_(key) {}
  std::string seal(std::string_view body);
  // The MAC alone, for a body that is not in one piece: it is sent after length and body.
  Bytes32 mac(size_t length, const Bytes32& digest);

 private:
  Bytes32 key_;
  uint64_t sequence_ = 0;
};

// Checks them. body_and_mac is what followed the length on the wire. Returns the body, or nullopt
// if the MAC is wrong (the connection is then unusable).
class FrameOpener {
 public:
  explicit FrameOpener(const Bytes32& key) : key_(key) {}
  std::optional<std::string_view> open(std::string_view body_and_mac);

 private:
  Bytes32 key_;
  uint64_t sequence_ = 0;
};

enum class Operation : uint8_t {
  kSet = 1,
  kGet = 2,
  kAdd = 3,
  kCancel = 4,
  kGetRanks = 5,
  kJoin = 6,   // the value: Joining; the reply's: Joined
  kAlive = 7,  // in answer to Event::kAlive; no reply
  kLeave = 8,  // the rank is done; wait: because of an error
};

// One request. The client chooses the id, and the reply returns it; kCancel names the kGet or
// kGetRanks to forget and has no reply.
struct Request {
  Operation operation = Operation::kSet;
  uint64_t id = 0;
  std::string key = {};
  std::string value = {};  // kSet
  int64_t delta = 0;       // kAdd
  bool wait = false;       // kGet: answer when the key is set; kGetRanks: when all are
  uint32_t first = 0;      // kGetRanks: the values of key/first to key/(count - 1), as many of
  uint32_t count = 0;      // them as a frame holds; waits for all from key/0 on
};
std::string encode(const Request& request);
std::optional<Request> decode_request(std::string_view body);  // nullopt if malformed

enum class Status : uint8_t { kOk = 0, kAbsent = 1, kRefused = 2 };

struct Reply {
  Status status = Status::kOk;
  uint64_t id = 0;
  int64_t number = 0;
  std::string value = {};  // kGet's value, kGetRanks' values, or the reason of kRefused
};
std::string encode(const Reply& reply);
std::optional<Reply> decode_reply(std::string_view body);

// An encoded reply begins with its value; the rest follows, always of the same size. So one value
// that answers many requests is encoded and hashed once.
std::string encode_value(std::string_view value);
std::string encode_rest(const Reply& reply);

// What the server sends unrequested, to ranks that have joined: a Reply with this id whose number
// is the event.
constexpr uint64_t kEventId = 0;
enum class Event : int64_t {
  kAlive = 1,     // a request for a sign of life
  kLost = 2,      // the value: a PeerLoss
  kCameBack = 3,  // the value: the rank that had left
  kLeft = 4,      // the value: the ranks that have left, space-separated
};

struct Joining {
  int rank = -1;
  ProcessIdentity process;
  std::string machine = {};  // machine_identity()
};
std::string encode(const Joining& joining);
std::optional<Joining> decode_join(const std::string& text);

struct Joined {
  int host_rank = -1;  // the rank that hosts the server; -1: a launcher does
  ProcessIdentity host;
  std::string machine = {};
  std::chrono::milliseconds limit{};  // the longest silence tolerated; zero: any
};
// How often silence is checked: both sides send something every other time.
inline std::chrono::milliseconds tick_of(std::chrono::milliseconds limit) {
  return std::max(limit / 8, std::chrono::milliseconds(5));
}
std::string encode(const Joined& joined);
std::optional<Joined> decode_joined(const std::string& text);

// The values of kGetRanks, one after another.
void append_rank_value(std::string& values, const std::optional<std::string_view>& value);
std::optional<std::vector<std::optional<std::string>>> decode_rank_values(std::string_view values);

}  // namespace coupler::store_wire

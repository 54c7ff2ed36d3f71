// What goes over the wire between the store's server and its clients. Plain functions and values;
// a FrameSealer or FrameOpener belongs to one direction of one connection and one thread at a time.
//
//   server -> client   magic "CPLRSTR1", server nonce (32)
//   client -> server   client nonce (32), HMAC(secret, "client" + both nonces)
//   server -> client   HMAC(secret, "server" + both nonces)
//
// Then frames in both directions: length (4), body (length), MAC (32). The MAC covers a sequence
// number that is not sent, the length and the body, under a key of this connection and direction;
// so a frame cannot be forged, altered, replayed, reordered or left out. Numbers are little-endian.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "rendezvous/secret.h"

namespace coupler::store_wire {

constexpr std::string_view kMagic = "CPLRSTR1";
constexpr size_t kHelloSize = 8 + 32;  // magic, nonce
constexpr size_t kProofSize = 32 + 32;
constexpr size_t kMacSize = 32;

constexpr size_t kMaxKey = 1024;
constexpr size_t kMaxValue = 8u << 20;
constexpr size_t kMaxFrame = 9u << 20;

enum class Side { kClient, kServer };
// The proof that a side knows the secret.
Bytes32 proof(const Bytes32& secret, Side side, const Bytes32& server_nonce,
              const Bytes32& client_nonce);
// The key of the frames that side sends.
Bytes32 frame_key(const Bytes32& secret, Side side, const Bytes32& server_nonce,
                  const Bytes32& client_nonce);

// Makes the frames of one direction.
class FrameSealer {
 public:
  explicit FrameSealer(const Bytes32& key) : key_(key) {}
  std::string seal(std::string_view body);

 private:
  Bytes32 key_;
  uint64_t sequence_ = 0;
};

// Checks them. body_and_mac is what followed the length on the wire; the result is the body, or
// nothing where the MAC is wrong (the connection is then worthless).
class FrameOpener {
 public:
  explicit FrameOpener(const Bytes32& key) : key_(key) {}
  std::optional<std::string_view> open(std::string_view body_and_mac);

 private:
  Bytes32 key_;
  uint64_t sequence_ = 0;
  std::string scratch_;
};

enum class Operation : uint8_t { kSet = 1, kGet = 2, kAdd = 3, kCancel = 4 };

// One request. The id is chosen by the client and returned in the reply; kCancel names the kGet to
// forget and has no reply.
struct Request {
  Operation operation = Operation::kSet;
  uint64_t id = 0;
  std::string key = {};
  std::string value = {};  // kSet
  int64_t delta = 0;       // kAdd
  bool wait = false;       // kGet: answer when the key is set
};
std::string encode(const Request& request);
std::optional<Request> decode_request(std::string_view body);  // nothing where it is malformed

enum class Status : uint8_t { kOk = 0, kAbsent = 1, kRefused = 2 };

struct Reply {
  Status status = Status::kOk;
  uint64_t id = 0;
  int64_t number = 0;
  std::string value = {};  // kGet's value, or the reason of kRefused
};
std::string encode(const Reply& reply);
std::optional<Reply> decode_reply(std::string_view body);

}  // namespace coupler::store_wire

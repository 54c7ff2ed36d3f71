#include "rendezvous/store_wire.h"

#include <bit>
#include <cstring>
#include <vector>

namespace coupler::store_wire {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are copied as they are");

template <typename T>
void put(std::string& out, T value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}

void put_text(std::string& out, std::string_view text) {
  put(out, static_cast<uint32_t>(text.size()));
  out.append(text);
}

// Takes values off the front; every take fails for good once the text is too short.
class Reader {
 public:
  explicit Reader(std::string_view rest) : rest_(rest) {}

  template <typename T>
  T take() {
    T value{};
    if (rest_.size() < sizeof value) {
      good_ = false;
      return value;
    }
    std::memcpy(&value, rest_.data(), sizeof value);
    rest_.remove_prefix(sizeof value);
    return value;
  }
  std::string take_text(size_t most) {
    const auto size = take<uint32_t>();
    if (!good_ || size > most || size > rest_.size()) {
      good_ = false;
      return {};
    }
    std::string text(rest_.substr(0, size));
    rest_.remove_prefix(size);
    return text;
  }
  bool finished() const { return good_ && rest_.empty(); }

 private:
  std::string_view rest_;
  bool good_ = true;
};

Bytes32 derive(const Bytes32& secret, std::string_view label, const Bytes32& server_nonce,
               const Bytes32& client_nonce) {
  std::vector<uint8_t> text(label.begin(), label.end());
  text.insert(text.end(), server_nonce.begin(), server_nonce.end());
  text.insert(text.end(), client_nonce.begin(), client_nonce.end());
  return hmac_sha256(secret, text);
}

std::span<const uint8_t> as_bytes(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

}  // namespace

Bytes32 proof(const Bytes32& secret, Side side, const Bytes32& server_nonce,
              const Bytes32& client_nonce) {
  return derive(secret, side == Side::kClient ? "coupler proof client" : "coupler proof server",
                server_nonce, client_nonce);
}

Bytes32 frame_key(const Bytes32& secret, Side side, const Bytes32& server_nonce,
                  const Bytes32& client_nonce) {
  return derive(secret, side == Side::kClient ? "coupler frames client" : "coupler frames server",
                server_nonce, client_nonce);
}

std::string FrameSealer::seal(std::string_view body) {
  std::string frame;
  frame.reserve(8 + 4 + body.size() + kMacSize);
  put(frame, sequence_++);
  put_text(frame, body);
  const Bytes32 mac = hmac_sha256(key_, as_bytes(frame));
  frame.append(reinterpret_cast<const char*>(mac.data()), mac.size());
  frame.erase(0, 8);  // the sequence number is counted on both sides, never sent
  return frame;
}

std::optional<std::string_view> FrameOpener::open(std::string_view body_and_mac) {
  if (body_and_mac.size() < kMacSize) {
    return std::nullopt;
  }
  const auto body = body_and_mac.substr(0, body_and_mac.size() - kMacSize);
  scratch_.clear();
  put(scratch_, sequence_++);
  put_text(scratch_, body);
  const Bytes32 mac = hmac_sha256(key_, as_bytes(scratch_));
  if (scratch_.capacity() > 65536) {
    scratch_ = std::string();  // large values are rare: do not keep their room
  }
  if (!equal_constant_time(mac, as_bytes(body_and_mac).data() + body.size())) {
    return std::nullopt;
  }
  return body;
}

std::string encode(const Request& request) {
  std::string body;
  put(body, static_cast<uint8_t>(request.operation));
  put(body, request.id);
  put(body, static_cast<uint8_t>(request.wait ? 1 : 0));
  put(body, request.delta);
  put_text(body, request.key);
  put_text(body, request.value);
  return body;
}

std::optional<Request> decode_request(std::string_view body) {
  Reader reader(body);
  Request request;
  const auto operation = reader.take<uint8_t>();
  request.id = reader.take<uint64_t>();
  const auto wait = reader.take<uint8_t>();
  request.delta = reader.take<int64_t>();
  request.key = reader.take_text(kMaxKey);
  request.value = reader.take_text(kMaxValue);
  if (!reader.finished() || operation < 1 || operation > 4 || wait > 1) {
    return std::nullopt;
  }
  request.operation = static_cast<Operation>(operation);
  request.wait = wait == 1;
  return request;
}

std::string encode(const Reply& reply) {
  std::string body;
  put(body, static_cast<uint8_t>(reply.status));
  put(body, reply.id);
  put(body, reply.number);
  put_text(body, reply.value);
  return body;
}

std::optional<Reply> decode_reply(std::string_view body) {
  Reader reader(body);
  Reply reply;
  const auto status = reader.take<uint8_t>();
  reply.id = reader.take<uint64_t>();
  reply.number = reader.take<int64_t>();
  reply.value = reader.take_text(kMaxValue);
  if (!reader.finished() || status > 2) {
    return std::nullopt;
  }
  reply.status = static_cast<Status>(status);
  return reply;
}

}  // namespace coupler::store_wire

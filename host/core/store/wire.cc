#include "store/wire.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <sstream>
#include <type_traits>
#include <vector>

namespace coupler::store_wire {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are copied as they are");

template <typename T>
requires std::is_trivially_copyable_v<T>
void put(std::string& out, const T& value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void put_text(std::string& out, std::string_view text) {
  put(out, static_cast<uint32_t>(text.size()));
  out.append(text);
}

// Takes values off the front; every take fails for good once the input is too short.
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
  std::string take_text(size_t most) { return take_bytes(take<uint32_t>(), most); }
  std::string take_bytes(size_t size, size_t most) {
    if (!good_ || size > most || size > rest_.size()) {
      good_ = false;
      return {};
    }
    std::string text(rest_.substr(0, size));
    rest_.remove_prefix(size);
    return text;
  }
  bool good() const { return good_; }
  bool finished() const { return good_ && rest_.empty(); }

 private:
  std::string_view rest_;
  bool good_ = true;
};

Bytes32 derive(const Bytes32& secret, std::string_view label, const Bytes32& server_nonce,
               const Bytes32& client_nonce) {
  std::string text(label);
  put(text, server_nonce);
  put(text, client_nonce);
  return hmac_sha256(secret, text);
}

Bytes32 frame_mac(const Bytes32& key, uint64_t sequence, size_t length, const Bytes32& digest) {
  std::string text;
  put(text, sequence);
  put(text, static_cast<uint32_t>(length));
  put(text, digest);
  return hmac_sha256(key, text);
}

// The size of a rank's value that is not set; no real value is as long.
constexpr uint32_t kAbsentValue = 0xffffffff;

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

Bytes32 refusal(Refusal reason) {
  const std::string_view text =
      reason == Refusal::kSecret ? "coupler: another secret" : "coupler: no room";
  Bytes32 bytes{};
  std::copy(text.begin(), text.end(), bytes.begin());
  return bytes;
}

Bytes32 FrameSealer::mac(size_t length, const Bytes32& digest) {
  return frame_mac(key_, sequence_++, length, digest);
}

std::string FrameSealer::seal(std::string_view body) {
  const Bytes32 tag = mac(body.size(), Digest().update(body).finish());
  std::string frame;
  frame.reserve(4 + body.size() + kMacSize);
  put_text(frame, body);
  put(frame, tag);
  return frame;
}

std::optional<std::string_view> FrameOpener::open(std::string_view body_and_mac) {
  if (body_and_mac.size() < kMacSize) {
    return std::nullopt;
  }
  const auto body = body_and_mac.substr(0, body_and_mac.size() - kMacSize);
  const Bytes32 mac = frame_mac(key_, sequence_++, body.size(), Digest().update(body).finish());
  if (!equal_constant_time(mac, reinterpret_cast<const uint8_t*>(body.data()) + body.size())) {
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
  put(body, request.first);
  put(body, request.count);
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
  request.first = reader.take<uint32_t>();
  request.count = reader.take<uint32_t>();
  request.key = reader.take_text(kMaxKey);
  request.value = reader.take_text(kMaxValue);
  if (!reader.finished() || operation < 1 || operation > 8 || wait > 1) {
    return std::nullopt;
  }
  request.operation = static_cast<Operation>(operation);
  request.wait = wait == 1;
  return request;
}

std::string encode_value(std::string_view value) {
  std::string text;
  text.reserve(4 + value.size());
  put_text(text, value);
  return text;
}

std::string encode_rest(const Reply& reply) {
  std::string text;
  put(text, static_cast<uint8_t>(reply.status));
  put(text, reply.id);
  put(text, reply.number);
  return text;
}

std::string encode(const Reply& reply) { return encode_value(reply.value) + encode_rest(reply); }

std::optional<Reply> decode_reply(std::string_view body) {
  Reader reader(body);
  Reply reply;
  reply.value = reader.take_text(kMaxFrame);
  const auto status = reader.take<uint8_t>();
  reply.id = reader.take<uint64_t>();
  reply.number = reader.take<int64_t>();
  if (!reader.finished() || status > 2) {
    return std::nullopt;
  }
  reply.status = static_cast<Status>(status);
  return reply;
}

std::string encode(const Joining& joining) {
  return fmt::format("{} {} {} {}", joining.rank, joining.process.pid, joining.process.started,
                     joining.machine);
}

std::optional<Joining> decode_join(const std::string& text) {
  std::istringstream words(text);
  Joining joining;
  if (!(words >> joining.rank >> joining.process.pid >> joining.process.started >>
        joining.machine) ||
      joining.rank < 0) {
    return std::nullopt;
  }
  return joining;
}

std::string encode(const Joined& joined) {
  return fmt::format("{} {} {} {} {}", joined.host_rank, joined.host.pid, joined.host.started,
                     joined.machine, joined.limit.count());
}

std::optional<Joined> decode_joined(const std::string& text) {
  std::istringstream words(text);
  Joined joined;
  int64_t limit = 0;
  if (!(words >> joined.host_rank >> joined.host.pid >> joined.host.started >> joined.machine >>
        limit)) {
    return std::nullopt;
  }
  joined.limit = std::chrono::milliseconds(limit);
  return joined;
}

void append_rank_value(std::string& values, const std::optional<std::string_view>& value) {
  if (value) {
    put_text(values, *value);
  } else {
    put(values, kAbsentValue);
  }
}

std::optional<std::vector<std::optional<std::string>>> decode_rank_values(std::string_view values) {
  Reader reader(values);
  std::vector<std::optional<std::string>> result;
  while (!reader.finished()) {
    const auto size = reader.take<uint32_t>();
    auto& value = result.emplace_back();
    if (size != kAbsentValue) {
      value = reader.take_bytes(size, kMaxValue);
    }
    if (!reader.good() || result.size() > kMaxRanks) {
      return std::nullopt;
    }
  }
  return result;
}

}  // namespace coupler::store_wire

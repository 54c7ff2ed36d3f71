// Random bytes for everything that reads from the wire. Each round has a number, which a failure
// reports; the seeds below always run.
#include <gtest/gtest.h>

#include <array>
#include <random>
#include <string>

#include "base/socket.h"
#include "store/client.h"
#include "store/server.h"
#include "store/wire.h"

namespace coupler::store_wire {
namespace {

using namespace std::chrono_literals;

constexpr std::array<uint32_t, 4> kSeeds = {1, 20260117, 0x5eedf00d, 0xffffffff};
constexpr int kRounds = 10'000;  // per seed

class Chance {
 public:
  explicit Chance(uint32_t seed) : random_(seed) {}

  uint32_t below(size_t limit) { return static_cast<uint32_t>(random_() % limit); }
  std::string bytes(size_t most) {
    std::string text(below(most + 1), '\0');
    for (char& c : text) {
      c = static_cast<char>(random_());
    }
    return text;
  }
  // One to four changes: a bit, a byte, a number set to a limit, bytes removed or doubled.
  std::string mutate(std::string text) {
    for (uint32_t change = 0, changes = 1 + below(4); change < changes && !text.empty(); ++change) {
      const size_t place = below(text.size());
      switch (below(5)) {
        case 0:
          text[place] = static_cast<char>(text[place] ^ (1 << below(8)));
          break;
        case 1:
          text[place] = static_cast<char>(random_());
          break;
        case 2:
          text.replace(place, 4, std::string(4, below(2) == 0 ? '\xff' : '\0'));
          break;
        case 3:
          text.erase(place, 1 + below(8));
          break;
        default:
          text.insert(place, text.substr(place, 1 + below(8)));
      }
    }
    return text;
  }
  Request request() {
    return {.operation = static_cast<Operation>(1 + below(5)),
            .id = random_(),
            .key = bytes(40),
            .value = bytes(200),
            .delta = static_cast<int64_t>(random_()),
            .wait = below(2) == 1,
            .first = below(100),
            .count = below(100)};
  }
  Reply reply() {
    return {.status = static_cast<Status>(below(3)),
            .id = random_(),
            .number = static_cast<int64_t>(random_()),
            .value = bytes(200)};
  }

 private:
  std::mt19937 random_;
};

class StoreFuzz : public ::testing::TestWithParam<uint32_t> {};

// If a decoder accepts its input, encoding the result gives the same bytes.
TEST_P(StoreFuzz, Decoders_TakeNothingButWhatTheEncodersMake) {
  Chance chance(GetParam());
  for (int round = 0; round < kRounds; ++round) {
    SCOPED_TRACE(round);
    const auto request = encode(chance.request());
    const auto reply = encode(chance.reply());
    ASSERT_TRUE(decode_request(request));
    ASSERT_TRUE(decode_reply(reply));
    for (const std::string& text :
         {chance.bytes(300), chance.mutate(request), chance.mutate(reply)}) {
      if (const auto read = decode_request(text)) {
        ASSERT_EQ(encode(*read), text);
      }
      if (const auto read = decode_reply(text)) {
        ASSERT_EQ(encode(*read), text);
      }
      if (const auto values = decode_rank_values(text)) {
        std::string again;
        for (const auto& value : *values) {
          append_rank_value(again, value);
        }
        ASSERT_EQ(again, text);
      }
    }
  }
}

TEST_P(StoreFuzz, FramesOtherThanTheOneThatWasSealed_DoNotOpen) {
  Chance chance(GetParam());
  for (int round = 0; round < kRounds / 4; ++round) {
    SCOPED_TRACE(round);
    const Bytes32 key = random_bytes32();
    const auto body = chance.bytes(200);
    const auto frame = FrameSealer(key).seal(body).substr(4);
    const auto other = chance.mutate(frame);
    ASSERT_EQ(FrameOpener(key).open(other).has_value(), other == frame);
    ASSERT_EQ(FrameOpener(key).open(frame), body);
    ASSERT_FALSE(FrameOpener(key).open(chance.bytes(300)));
  }
}

// A broken member that seals nonsense ends at most its own connection.
TEST_P(StoreFuzz, ServerThatMembersSendNonsense_ServesTheOthers) {
  Chance chance(GetParam());
  const Bytes32 secret = random_bytes32();
  const store::StoreServer server(secret);
  store::StoreClient member("127.0.0.1", server.port(), secret, 20s);
  member.set("sound", "mind");
  for (int round = 0; round < 100; ++round) {
    SCOPED_TRACE(round);
    const auto socket = connect_tcp("127.0.0.1", server.port(), deadline_after(20s), false);
    std::array<uint8_t, kHelloSize> hello{};
    ASSERT_EQ(receive_all(socket.get(), hello.data(), hello.size(), deadline_after(20s)),
              IoResult::kOk);
    Bytes32 nonce{};
    std::copy(hello.begin() + kMagic.size(), hello.end(), nonce.begin());
    const Bytes32 mine = random_bytes32();
    const auto mark = proof(secret, Side::kClient, nonce, mine);
    std::string message(reinterpret_cast<const char*>(mine.data()), mine.size());
    message.append(reinterpret_cast<const char*>(mark.data()), mark.size());
    FrameSealer sealer(frame_key(secret, Side::kClient, nonce, mine));
    for (int frame = 0; frame < 20; ++frame) {
      auto request = chance.request();
      request.key = "mad/" + request.key;
      message += sealer.seal(chance.below(4) == 0 ? chance.bytes(100) : encode(request));
    }
    message += chance.bytes(100);
    send_all(socket.get(), message.data(), message.size(), deadline_after(20s));
    ASSERT_EQ(member.get("sound", 0s), "mind");
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, StoreFuzz, ::testing::ValuesIn(kSeeds));

}  // namespace
}  // namespace coupler::store_wire

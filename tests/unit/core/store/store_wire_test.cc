#include <gtest/gtest.h>

#include <random>
#include <string>

#include "store/wire.h"

namespace coupler::store_wire {
namespace {

std::string without_length(const std::string& frame) { return frame.substr(4); }

TEST(StoreWire, SealedFrames_Open_InTheirOrder) {
  const Bytes32 key = random_bytes32();
  FrameSealer sealer(key);
  FrameOpener opener(key);
  for (const std::string body : {"one", "", "three"}) {
    const auto frame = without_length(sealer.seal(body));
    EXPECT_EQ(opener.open(frame), body);
  }
}

TEST(StoreWire, ReplayedReorderedOrAlteredFrames_AreRefused_Always) {
  const Bytes32 key = random_bytes32();
  FrameSealer sealer(key);
  const auto first = without_length(sealer.seal("text"));
  const auto second = without_length(sealer.seal("text"));
  {
    FrameOpener opener(key);
    EXPECT_TRUE(opener.open(first));
    EXPECT_FALSE(opener.open(first));  // replayed
  }
  {
    FrameOpener opener(key);
    EXPECT_FALSE(opener.open(second));  // the first is missing
  }
  for (size_t i = 0; i < first.size(); ++i) {
    FrameOpener opener(key);
    auto altered = first;
    altered[i] = static_cast<char>(altered[i] ^ 1);
    EXPECT_FALSE(opener.open(altered)) << i;
  }
  FrameOpener other(random_bytes32());
  EXPECT_FALSE(other.open(first));
  EXPECT_FALSE(other.open("short"));
}

TEST(StoreWire, Keys_Differ_BySideAndNonce) {
  const Bytes32 secret = random_bytes32();
  const Bytes32 a = random_bytes32();
  const Bytes32 b = random_bytes32();
  EXPECT_NE(frame_key(secret, Side::kClient, a, b), frame_key(secret, Side::kServer, a, b));
  EXPECT_NE(frame_key(secret, Side::kClient, a, b), frame_key(secret, Side::kClient, b, a));
  EXPECT_NE(proof(secret, Side::kClient, a, b), frame_key(secret, Side::kClient, a, b));
}

TEST(StoreWire, FramesOfTheOtherSideOrAnotherConnection_AreRefused) {
  const Bytes32 secret = random_bytes32();
  const Bytes32 server = random_bytes32();
  const Bytes32 client = random_bytes32();
  const auto frame =
      without_length(FrameSealer(frame_key(secret, Side::kClient, server, client)).seal("text"));
  EXPECT_TRUE(FrameOpener(frame_key(secret, Side::kClient, server, client)).open(frame));
  EXPECT_FALSE(FrameOpener(frame_key(secret, Side::kServer, server, client)).open(frame));
  EXPECT_FALSE(FrameOpener(frame_key(secret, Side::kClient, random_bytes32(), client)).open(frame));
  EXPECT_FALSE(FrameOpener(frame_key(random_bytes32(), Side::kClient, server, client)).open(frame));
}

TEST(StoreWire, TruncatedOrExtendedFrames_AreRefused) {
  const Bytes32 key = random_bytes32();
  const auto frame = without_length(FrameSealer(key).seal("a string of some length"));
  for (size_t size = 0; size < frame.size(); ++size) {
    EXPECT_FALSE(FrameOpener(key).open(frame.substr(0, size))) << size;
    EXPECT_FALSE(FrameOpener(key).open(frame.substr(size + 1))) << size;
  }
  EXPECT_FALSE(FrameOpener(key).open(frame + "x"));
  EXPECT_TRUE(FrameOpener(key).open(frame));
}

TEST(StoreWire, ReplyInPieces_IsTheReplyInOne) {
  const Bytes32 key = random_bytes32();
  const Reply reply{.id = 9, .number = 4, .value = "what all get"};
  const auto value = encode_value(reply.value);
  const auto rest = encode_rest(reply);
  ASSERT_EQ(value + rest, encode(reply));
  Digest begun;
  begun.update(value);
  const auto mac =
      FrameSealer(key).mac(value.size() + rest.size(), Digest(begun).update(rest).finish());
  EXPECT_EQ(FrameSealer(key).seal(encode(reply)).substr(4),
            value + rest + std::string(mac.begin(), mac.end()));
}

TEST(StoreWire, Refusals_AreNoProofs_AndDiffer) {
  EXPECT_NE(refusal(Refusal::kSecret), refusal(Refusal::kFull));
}

TEST(StoreWire, Messages_SurviveTheRoundTrip_Whole) {
  const Request request{.operation = Operation::kAdd,
                        .id = 77,
                        .key = "key",
                        .value = std::string("\0v", 2),
                        .delta = -5,
                        .wait = true,
                        .first = 3,
                        .count = 9};
  const auto read = decode_request(encode(request));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->operation, Operation::kAdd);
  EXPECT_EQ(read->id, 77U);
  EXPECT_EQ(read->key, "key");
  EXPECT_EQ(read->value, request.value);
  EXPECT_EQ(read->delta, -5);
  EXPECT_TRUE(read->wait);
  EXPECT_EQ(read->first, 3U);
  EXPECT_EQ(read->count, 9U);
  const auto reply =
      decode_reply(encode(Reply{.status = Status::kRefused, .id = 3, .value = "no"}));
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->value, "no");
}

TEST(StoreWire, GarbageAndTruncation_DecodeToNothing_NeverCrash) {
  std::mt19937 random(7);
  const auto whole = encode(Request{.key = "key", .value = "value"});
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(decode_request(whole.substr(0, size)));
  }
  EXPECT_FALSE(decode_request(whole + "x"));
  for (int i = 0; i < 20000; ++i) {
    std::string text(random() % 64, '\0');
    for (char& c : text) {
      c = static_cast<char>(random());
    }
    decode_request(text);
    decode_reply(text);
  }
}

TEST(StoreWire, Hexadecimal_IsReadBack_OrRefused) {
  const Bytes32 bytes = random_bytes32();
  Bytes32 read{};
  EXPECT_TRUE(from_hex(to_hex(bytes), read));
  EXPECT_EQ(read, bytes);
  EXPECT_FALSE(from_hex("00", read));
  EXPECT_FALSE(from_hex(std::string(64, 'g'), read));
}

}  // namespace
}  // namespace coupler::store_wire

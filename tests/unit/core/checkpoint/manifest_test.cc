#include "checkpoint/manifest.h"

#include <coupler/error.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>

namespace coupler::checkpoint {
namespace {

Manifest example() {
  Manifest manifest;
  manifest.number = 7;
  manifest.save = "0123456789abcdef0123456789abcdef";
  manifest.steps = 1200;
  manifest.world_size = 4;
  manifest.backend = "gloo_cpu";
  manifest.plan = "zero1";
  manifest.coupler_version = "0.3.0";
  manifest.libtorch_version = "2.9.0";
  manifest.saved_at = "2026-11-22T15:04:05Z";
  manifest.state = {{"epoch", 3}, {"scale", 65536.5}, {"seeds", {1, 2, 3}}, {"name", "größer"}};
  manifest.files = {{"model.safetensors", 123, Digest().update("a").finish()},
                    {"optimizer-00001-of-00004.safetensors", 0, Digest().update("b").finish(), 3}};
  return manifest;
}

std::string manifest_message(const std::function<void()>& action, ErrorCode code) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    const std::string text = error.what();
    return text.substr(0, text.find("\n  hint"));
  }
  return "no error";
}

std::string manifest_refusal(const std::string& text) {
  return manifest_message([&] { parse(text, "m.json"); }, ErrorCode::kIo);
}

// The example with one part of its text replaced and a matching checksum.
std::string changed(const std::string& from, const std::string& to) {
  std::string text = format(example());
  text.erase(text.find(",\n  \"checksum\""));
  const auto at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  return with_checksum(text);
}

TEST(CheckpointManifest, WhatIsFormatted_IsReadBack_AndReadable) {
  const std::string text = format(example());
  EXPECT_EQ(parse(text, "m.json"), example());
  EXPECT_TRUE(text.starts_with(
      "{\n  \"format\": \"coupler.checkpoint/1.1\",\n  \"number\": 7,\n  \"save\": "))
      << text;
  EXPECT_TRUE(nlohmann::json::accept(text));
  EXPECT_EQ(format(parse(text, "m.json")), text);
}

TEST(CheckpointManifest, AnyBitFlipped_IsRefused) {
  const std::string text = format(example());
  for (size_t i = 0; i < text.size() * 8; ++i) {
    std::string flipped = text;
    flipped[i / 8] = static_cast<char>(flipped[i / 8] ^ (1 << (i % 8)));
    EXPECT_NE(manifest_refusal(flipped), "no error") << "bit " << i;
  }
}

TEST(CheckpointManifest, CutOffAnywhere_OrGoingOn_IsRefused) {
  const std::string text = format(example());
  for (size_t i = 0; i < text.size(); ++i)
    EXPECT_NE(manifest_refusal(text.substr(0, i)), "no error") << i;
  EXPECT_NE(manifest_refusal(text + " "), "no error");
  EXPECT_NE(manifest_refusal(text + text), "no error");
  EXPECT_NE(manifest_refusal(std::string(text).append(1, '\0')), "no error");
}

TEST(CheckpointManifest, ChangedByHand_SaysSo) {
  std::string text = format(example());
  text.replace(text.find("1200"), 4, "1300");
  EXPECT_EQ(manifest_refusal(text),
            "m.json: 'checksum' does not match the contents: the file was changed or damaged");
}

TEST(CheckpointManifest, ALaterMajorVersion_IsRefused_NamingBoth) {
  EXPECT_EQ(manifest_refusal(changed("coupler.checkpoint/1.1", "coupler.checkpoint/2.1")),
            "m.json: 'format' is coupler.checkpoint/2.1, written by Coupler 0.3.0; this Coupler "
            "reads coupler.checkpoint/1");
  EXPECT_EQ(manifest_refusal(changed("coupler.checkpoint/1.1", "other/1")),
            "m.json: 'format' is 'other/1', not coupler.checkpoint/1");
}

// As written by a Coupler whose saves had no identity.
TEST(CheckpointManifest, AnEarlierMinorVersion_IsRead_WithoutAnIdentity) {
  const std::string text = R"({
  "format": "coupler.checkpoint/1",
  "number": 7,
  "steps": 1200,
  "world": 4,
  "backend": "gloo_cpu",
  "plan": "zero1",
  "coupler_version": "0.1.0",
  "libtorch_version": "2.11.0",
  "saved_at": "2026-11-22T15:04:05Z",
  "state": {},
  "files": [
    {
      "name": "model.safetensors",
      "bytes": 123,
      "sha256": "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"
    }
  ])";
  const Manifest manifest = parse(with_checksum(text), "m.json");
  EXPECT_EQ(manifest.save, "");
  EXPECT_EQ(manifest.files[0].rank, -1);
  EXPECT_EQ(format(manifest), with_checksum(text));
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string other = text;
    return manifest_refusal(with_checksum(other.replace(other.find(from), from.size(), to)));
  };
  EXPECT_EQ(with("\"number\"", "\"save\": \"\", \"number\""),
            "m.json: 'save' is not a key of the format");
  EXPECT_EQ(with("\"bytes\"", "\"rank\": 0, \"bytes\""),
            "m.json: 'files[0].rank' is not a key of the format");
}

TEST(CheckpointManifest, ALaterMinorVersion_IsRead_WithKeysThatAreNotKnown) {
  const std::string later =
      changed("coupler.checkpoint/1.1\"", "coupler.checkpoint/1.4\",\n\"x\": 1");
  EXPECT_EQ(parse(later, "m.json"), example());
  EXPECT_EQ(manifest_refusal(changed("\"number\"", "\"x\": 1, \"number\"")),
            "m.json: 'x' is not a key of the format");
}

TEST(CheckpointManifest, WrongValues_AreRefused_NamingTheKey) {
  const struct {
    const char* from;
    const char* to;
    const char* message;
  } cases[] = {
      {"0123456789abcdef0123456789abcdef", "0123456789ABCDEF0123456789abcdef",
       "'save' must be 32 lower-case hexadecimal digits, not '0123456789ABCDEF0123456789abcdef'"},
      {"0123456789abcdef0123456789abcdef", "", "'save' is empty"},
      {"\"save\": \"0123456789abcdef0123456789abcdef\",", "", "'save' is missing"},
      {"\"rank\": 3", "\"rank\": 4", "'files[1].rank' must be below the world size 4, not 4"},
      {"\"rank\": 3", "\"rank\": -1",
       "'files[1].rank' must be a whole number from 0 to 2147483647, not -1"},
      {"\"number\": 7", "\"number\": -7",
       "'number' must be a whole number from 0 to 9223372036854775807, not -7"},
      {"\"number\": 7", "\"number\": 7.0",
       "'number' must be a whole number from 0 to 9223372036854775807, not 7.0"},
      {"\"steps\": 1200", "\"steps\": 9223372036854775808",
       "'steps' must be a whole number from 0 to 9223372036854775807, not 9223372036854775808"},
      {"\"world\": 4", "\"world\": 0", "'world' must be at least 1"},
      {"\"world\": 4", "\"world\": 4294967296",
       "'world' must be a whole number from 0 to 2147483647, not 4294967296"},
      {"\"backend\": \"gloo_cpu\"", "\"backend\": null", "'backend' must be a string, not null"},
      {"\"backend\": \"gloo_cpu\",", "", "'backend' is missing"},
      {"\"plan\"", "\"backend\"", "'backend' is given twice"},
      {"\"epoch\"", "\"name\"", "'name' is given twice"},
      {"2026-11-22T15:04:05Z", "yesterday",
       "'saved_at' must be a time such as 2026-01-31T09:30:00Z, not 'yesterday'"},
      {"\"state\": {", "\"state\": [{", "is not valid JSON in UTF-8 at byte "},
      {"\"bytes\": 123", "\"bytes\": -123",
       "'files[0].bytes' must be a whole number from 0 to 9223372036854775807, not -123"},
      {"\"bytes\": 123", "\"bytes\": \"123\"",
       "'files[0].bytes' must be a whole number from 0 to 9223372036854775807, not \"123\""},
      {"\"bytes\": 123", "\"bytes\": 1e999", "contains a number that is too large"},
      {"\"bytes\": 0", "\"bytes\": 9223372036854775807",
       "'files[1].bytes' brings the total to more than 2^63 - 1 bytes"},
      {"\"sha256\": \"", "\"sha256\": \"0",
       "'files[0].sha256' must be 64 lower-case hexadecimal digits, not \"0"},
      {"\"bytes\": 123,", "\"bytes\": 123, \"mode\": 1,",
       "'files[0].mode' is not a key of the format"},
      {"optimizer-00001-of-00004.safetensors", "model.safetensors",
       "'files[1].name' 'model.safetensors' is given twice"},
      {"größer",
       "gr\xf6\xdf"
       "er",
       "is not valid JSON in UTF-8 at byte "},
  };
  for (const auto& wrong : cases) {
    const std::string message = manifest_refusal(changed(wrong.from, wrong.to));
    EXPECT_TRUE(message.starts_with(std::string("m.json: ") + wrong.message)) << message;
  }
}

TEST(CheckpointManifest, FileNamesThatLeadElsewhere_AreRefused_ReadingAndWriting) {
  for (const char* name : {"", ".", "..", "../x", "/etc/passwd", "a/b", "a\\\\b", ".hidden",
                           "manifest.json", "a\\u0000b", "a\\nb"}) {
    const std::string message = manifest_refusal(changed("model.safetensors", name));
    EXPECT_TRUE(message.starts_with("m.json: 'files[0].name' ")) << name << ": " << message;
  }
  EXPECT_EQ(check_file_name(std::string(256, 'a')), "is longer than 255 bytes");
  EXPECT_EQ(check_file_name("a..b"), "");
  Manifest manifest = example();
  manifest.files[0].name = "../x";
  EXPECT_EQ(manifest_message([&] { format(manifest); }, ErrorCode::kInvalidArgument),
            "the checkpoint's manifest cannot be written: files[0].name '../x' begins with '.'");
}

TEST(CheckpointManifest, WhatIsTooDeepOrTooLong_IsRefused) {
  const std::string deep(100000, '[');
  EXPECT_EQ(manifest_refusal(deep), "m.json: more than 64 levels of brackets");
  EXPECT_EQ(manifest_refusal(std::string(kMaxManifestBytes + 1, ' ')),
            "m.json: has 67108865 bytes, more than the maximum of 67108864");
}

TEST(CheckpointManifest, StateThatJsonCannotHold_IsNotWritten) {
  const auto refused = [](const nlohmann::json& value) {
    Manifest manifest = example();
    manifest.state["x"] = value;
    return manifest_message([&] { format(manifest); }, ErrorCode::kInvalidArgument)
        .substr(sizeof "the checkpoint's manifest cannot be written: " - 1);
  };
  EXPECT_EQ(refused({1.0, std::nan("")}), "state.x[1] is not a finite number, as JSON requires");
  EXPECT_EQ(refused(nlohmann::json::binary({1, 2})),
            "state.x is a type that JSON cannot represent");
  EXPECT_EQ(refused("\xff"), "contains a string that is not UTF-8");
  nlohmann::json deep = 1;
  for (int i = 0; i < 62; ++i) deep = nlohmann::json::array({deep});
  Manifest manifest = example();
  manifest.state["x"] = deep;
  EXPECT_EQ(parse(format(manifest), "m.json"), manifest);
  EXPECT_TRUE(refused(nlohmann::json::array({deep})).ends_with("more than 64 levels of brackets"));
  manifest.state = nlohmann::json::array();
  EXPECT_EQ(manifest_message([&] { format(manifest); }, ErrorCode::kInvalidArgument),
            "the checkpoint's manifest cannot be written: state must be an object");
}

TEST(CheckpointManifest, TheTimeNow_IsOneThatIsRead) {
  Manifest manifest = example();
  manifest.saved_at = now_utc();
  EXPECT_EQ(parse(format(manifest), "m.json").saved_at, manifest.saved_at);
}

}  // namespace
}  // namespace coupler::checkpoint

#include "formats/safetensors_writer.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "refusal.h"

namespace coupler::safetensors {
namespace {

namespace fs = std::filesystem;

std::string bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string fixture(const std::string& name) {
  return bytes_of(std::string(COUPLER_SOURCE_DIR) + "/tests/unit/core/formats/fixtures/" + name);
}

Header parse_written(const std::string& bytes) {
  return parse_header(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(), "written");
}

// Byte i of the fixtures' data.
std::string numbered(uint64_t begin, uint64_t end) {
  std::string bytes;
  for (uint64_t i = begin; i < end; ++i) bytes += static_cast<char>(i % 251);
  return bytes;
}

std::string layout_refusal(std::vector<TensorEntry> entries, const Metadata& metadata = {}) {
  return coupler::testing::refusal_of(ErrorCode::kInvalidArgument,
                                      [&] { lay_out(std::move(entries), metadata, "out"); });
}

class SafetensorsWriter : public ::testing::Test {
 protected:
  SafetensorsWriter() {
    std::string path = (fs::temp_directory_path() / "coupler-writer-XXXXXX").string();
    if (::mkdtemp(path.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    folder_ = path;
  }
  ~SafetensorsWriter() override { fs::remove_all(folder_); }

  std::string path() const { return (folder_ / "model.safetensors").string(); }

  // The file with these tensors and the fixtures' data, written in pieces of at most `piece` bytes.
  std::string written(std::vector<TensorEntry> entries, const Metadata& metadata = {},
                      uint64_t piece = 5) const {
    Writer writer(path(), std::move(entries), metadata);
    for (const TensorInfo& tensor : writer.tensors())
      for (uint64_t begin = tensor.begin; begin < tensor.end; begin += piece) {
        const std::string bytes = numbered(begin, std::min(begin + piece, tensor.end));
        writer.write(tensor.name, bytes.data(), bytes.size());
      }
    const WrittenFile file = writer.finish();
    std::string bytes = bytes_of(path());
    EXPECT_EQ(file.bytes, bytes.size());
    EXPECT_EQ(to_hex(file.sha256), to_hex(Digest().update(bytes).finish()));
    fs::remove(path());
    return bytes;
  }

  std::string misuse(const std::function<void(Writer&)>& action) const {
    std::string message = coupler::testing::refusal_of(ErrorCode::kInternal, [&] {
      Writer writer(path(), {{"a", DType::kF32, {2}}, {"b", DType::kU8, {3}}});
      action(writer);
    });
    EXPECT_FALSE(fs::exists(path()));
    return message;
  }

  fs::path folder_;
};

TEST_F(SafetensorsWriter, EveryDTypeThatPythonWrites_IsWrittenByteForByteTheSame) {
  std::vector<TensorEntry> entries = {{"f4", DType::kF4, {4, 2}}};
  for (const auto& [prefix, dtype] :
       std::vector<std::pair<std::string, DType>>{{"bool", DType::kBool},
                                                  {"u8", DType::kU8},
                                                  {"i8", DType::kI8},
                                                  {"f8_e5m2", DType::kF8E5M2},
                                                  {"f8_e4m3", DType::kF8E4M3},
                                                  {"f8_e8m0", DType::kF8E8M0},
                                                  {"i16", DType::kI16},
                                                  {"u16", DType::kU16},
                                                  {"f16", DType::kF16},
                                                  {"bf16", DType::kBF16},
                                                  {"i32", DType::kI32},
                                                  {"u32", DType::kU32},
                                                  {"f32", DType::kF32},
                                                  {"c64", DType::kC64},
                                                  {"f64", DType::kF64},
                                                  {"i64", DType::kI64},
                                                  {"u64", DType::kU64},
                                                  {"f8_e4m3fnuz", DType::kF8E4M3Fnuz},
                                                  {"f8_e5m2fnuz", DType::kF8E5M2Fnuz}})
    for (const char* suffix : {".2", ".10"}) entries.push_back({prefix + suffix, dtype, {3}});
  EXPECT_EQ(written(entries, {{"format", "pt"}}), fixture("written_dtypes.safetensors"));
}

TEST_F(SafetensorsWriter, OddNamesScalarsAndEmptyTensors_AreWrittenAsByPython) {
  EXPECT_EQ(written({{"weird é \" \\ /\b\f\n\r\t\x01\x7f", DType::kF32, {2, 2}},
                     {"", DType::kF32, {}},
                     {"B", DType::kU8, {0, 5}},
                     {"a", DType::kU8, {1}},
                     {"\U0001f600", DType::kU8, {1}},
                     {"\uffee", DType::kU8, {1}}},
                    {{"k\"é", "line\nend"}}),
            fixture("written_names.safetensors"));
}

TEST_F(SafetensorsWriter, NoTensors_MakeTheFileThatPythonMakes) {
  EXPECT_EQ(written({}), fixture("written_empty.safetensors"));
}

TEST_F(SafetensorsWriter, StringsWithoutTensors_AreThere) {
  const Metadata metadata = {{"b", "2"}, {"a", "1"}};
  const std::string bytes = written({}, metadata);
  EXPECT_EQ(bytes.substr(8), "{\"__metadata__\":{\"a\":\"1\",\"b\":\"2\"}}      ");
  EXPECT_EQ(parse_written(bytes).metadata, metadata);
}

TEST_F(SafetensorsWriter, Pieces_MayBeOfAnySize) {
  const std::vector<TensorEntry> entries = {{"a", DType::kF32, {3}},
                                            {"b", DType::kU8, {0}},
                                            {"c", DType::kF6E2M3, {4}},
                                            {"d", DType::kU8, {7}}};
  const std::string whole = written(entries, {}, 1000);
  for (const uint64_t piece : {1u, 2u, 3u, 11u, 12u, 13u})
    EXPECT_EQ(written(entries, {}, piece), whole) << piece;
}

TEST_F(SafetensorsWriter, PiecesWithoutBytes_AreTakenAnywhere) {
  Writer writer(path(), {{"a", DType::kU8, {1}}, {"b", DType::kU8, {0}}});
  writer.write("b", nullptr, 0);
  writer.write("a", "x", 1);
  writer.write("b", nullptr, 0);
  EXPECT_EQ(writer.finish().bytes, bytes_of(path()).size());
}

TEST_F(SafetensorsWriter, BytesInAnotherOrder_AreRefused_AndNoFileIsLeft) {
  EXPECT_EQ(
      misuse([](Writer& writer) { writer.write("b", "123", 3); }),
      path() +
          ": bytes were written for tensor 'b', but tensor 'a' is due and has 0 of its 8 bytes");
  EXPECT_EQ(
      misuse([](Writer& writer) {
        writer.write("a", "1234567", 7);
        writer.write("b", "123", 3);
      }),
      path() +
          ": bytes were written for tensor 'b', but tensor 'a' is due and has 7 of its 8 bytes");
  EXPECT_EQ(
      misuse([](Writer& writer) {
        writer.write("a", "12345678", 8);
        writer.write("a", "9", 1);
      }),
      path() +
          ": bytes were written for tensor 'a', but tensor 'b' is due and has 0 of its 3 bytes");
}

TEST_F(SafetensorsWriter, TooManyBytes_AreRefused_AndNoFileIsLeft) {
  EXPECT_EQ(misuse([](Writer& writer) {
              writer.write("a", "1234567", 7);
              writer.write("a", "89", 2);
            }),
            path() + ": tensor 'a' has 8 bytes, but 9 were written");
  EXPECT_EQ(misuse([](Writer& writer) {
              writer.write("a", "12345678", 8);
              writer.write("b", "123", 3);
              writer.write("c", "1", 1);
            }),
            path() + ": 1 bytes were written for tensor 'c' after the last tensor was complete");
}

TEST_F(SafetensorsWriter, TooFewBytes_AreRefused_AndNoFileIsLeft) {
  EXPECT_EQ(misuse([](Writer& writer) { writer.finish(); }),
            path() + ": the file ends, but tensor 'a' has 0 of its 8 bytes");
  EXPECT_EQ(misuse([](Writer& writer) {
              writer.write("a", "12345678", 8);
              writer.write("b", "12", 2);
              writer.finish();
            }),
            path() + ": the file ends, but tensor 'b' has 2 of its 3 bytes");
}

TEST_F(SafetensorsWriter, WhatIsRefused_MakesNoFile) {
  EXPECT_THROW(Writer(path(), {{"__metadata__", DType::kU8, {1}}}), Error);
  EXPECT_FALSE(fs::exists(path()));
}

TEST_F(SafetensorsWriter, AFileThatIsThere_IsNotWrittenOver) {
  std::ofstream(path()) << "old";
  EXPECT_THROW(Writer(path(), {{"w", DType::kU8, {1}}}), Error);
  EXPECT_EQ(bytes_of(path()), "old");
}

// Random tensors are read back unchanged, whatever their names.
TEST_F(SafetensorsWriter, RandomTensors_ReadBackTheSame) {
  std::mt19937 random(20261122);
  const auto below = [&](uint32_t limit) { return static_cast<uint32_t>(random() % limit); };
  const std::array<const char*, 8> parts = {"w", ".", "\"", "\\", "é", "\n", "\U0001f600", "\x7f"};
  const auto name = [&] {
    std::string text = std::to_string(random());
    for (uint32_t i = below(6); i > 0; --i) text += parts[below(parts.size())];
    return text;
  };
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE(round);
    std::vector<TensorEntry> entries;
    for (uint32_t i = below(12); i > 0; --i) {
      TensorEntry entry{name(), static_cast<DType>(below(22)), {}};
      for (uint32_t rank = below(4); rank > 0; --rank) entry.shape.push_back(below(5));
      // Whole bytes for any dtype.
      if (bits(entry.dtype) < 8) entry.shape.push_back(4);
      entries.push_back(std::move(entry));
    }
    Metadata metadata;
    for (uint32_t i = below(4); i > 0; --i) metadata[name()] = name();

    const std::string bytes = written(entries, metadata, 1 + below(40));
    const Header header = parse_written(bytes);
    EXPECT_EQ(header.metadata, metadata);
    EXPECT_EQ(header.data_offset % 8, 0u);
    ASSERT_EQ(header.tensors.size(), entries.size());
    for (const TensorEntry& entry : entries) {
      const TensorInfo& read = header.tensors[header.index.at(entry.name)];
      EXPECT_EQ(read.dtype, entry.dtype);
      EXPECT_EQ(read.shape, entry.shape);
      // Elements are aligned for the machine.
      if (read.begin != read.end && bits(read.dtype) >= 8) {
        EXPECT_EQ(read.begin % (bits(read.dtype) / 8), 0u);
      }
    }
    EXPECT_EQ(bytes.substr(header.data_offset), numbered(0, bytes.size() - header.data_offset));
  }
}

TEST(SafetensorsLayout, NamesThatAreNoNames_AreRefused) {
  EXPECT_EQ(layout_refusal({{"__metadata__", DType::kU8, {1}}}),
            "out: tensor '__metadata__': the format reserves this name for its strings");
  EXPECT_EQ(
      layout_refusal({{"w", DType::kU8, {1}}, {"v", DType::kU8, {1}}, {"w", DType::kF32, {1}}}),
      "out: tensor 'w': the name is given twice");
  EXPECT_EQ(layout_refusal({{"a\xff", DType::kU8, {1}}}),
            "out: tensor 'a\\xff': the name is not valid UTF-8");
  EXPECT_EQ(layout_refusal({{"\xed\xa0\x80", DType::kU8, {1}}}),  // a surrogate
            "out: tensor '\\xed\\xa0\\x80': the name is not valid UTF-8");
}

TEST(SafetensorsLayout, StringsThatAreNoUtf8_AreRefused) {
  EXPECT_EQ(layout_refusal({}, {{"\xff", "v"}}),
            "out: __metadata__: the key '\\xff' is not valid UTF-8");
  EXPECT_EQ(layout_refusal({}, {{"k", "\xff"}}),
            "out: __metadata__: the value of 'k' is not valid UTF-8");
}

TEST(SafetensorsLayout, ShapesThatDoNotFit_AreRefused) {
  EXPECT_EQ(layout_refusal({{"w", DType::kF32, {2, -1}}}),
            "out: tensor 'w': shape has the negative dimension -1");
  EXPECT_EQ(layout_refusal({{"w", DType::kF32, std::vector<int64_t>(65, 1)}}),
            "out: tensor 'w': shape has 65 dimensions, more than 64");
  EXPECT_EQ(layout_refusal({{"w", DType::kF64, {int64_t{1} << 60}}}),
            "out: tensor 'w': shape [1152921504606846976] × dtype F64 is not a whole number of "
            "bytes below 2^63");
  EXPECT_EQ(layout_refusal({{"w", DType::kU8, {0, int64_t{1} << 32, int64_t{1} << 32}}}),
            "out: tensor 'w': shape [0, 4294967296, 4294967296] × dtype U8 is not a whole number "
            "of bytes below 2^63");
  EXPECT_EQ(layout_refusal({{"w", DType::kF4, {3}}}),
            "out: tensor 'w': shape [3] × dtype F4 is not a whole number of bytes below 2^63");
  EXPECT_EQ(layout_refusal({{"w", DType::kF64, std::vector<int64_t>(64, 1)}}), "accepted");
}

TEST(SafetensorsLayout, DataThatExceeds63Bits_IsRefused) {
  // 2^63 / 8 - 1 bytes each, the maximum for one tensor.
  std::vector<TensorEntry> entries;
  for (int i = 0; i < 9; ++i)
    entries.push_back({std::to_string(i), DType::kU8, {(int64_t{1} << 60) - 1}});
  EXPECT_EQ(layout_refusal(entries),
            "out: tensor '8': with the preceding tensors, the data exceeds 2^63 - 1 bytes");
  entries.pop_back();
  EXPECT_EQ(lay_out(entries, {}, "out").data_bytes, (uint64_t{1} << 63) - 8);
}

TEST(SafetensorsLayout, TooManyTensors_AreRefused) {
  EXPECT_EQ(layout_refusal(std::vector<TensorEntry>(kMaxTensors + 1, {"w", DType::kU8, {1}})),
            "out: 262145 tensors exceed the limit of 262144");
}

TEST(SafetensorsLayout, HeadersThatAreTooLong_AreRefused) {
  const std::string rule = "out: the header needs more than the format's 100000000 bytes";
  EXPECT_EQ(layout_refusal({{std::string(kMaxHeaderBytes, 'x'), DType::kU8, {}}}), rule);
  EXPECT_EQ(layout_refusal({}, {{"k", std::string(kMaxHeaderBytes, 'x')}}), rule);
  // The longest header that the reader accepts, and one byte more.
  const std::string frame = "{\"__metadata__\":{\"k\":\"\"}}";
  const std::string value(kMaxHeaderBytes - frame.size(), 'x');
  EXPECT_EQ(lay_out({}, {{"k", value}}, "out").head.size(), sizeof(uint64_t) + kMaxHeaderBytes);
  EXPECT_EQ(layout_refusal({}, {{"k", value + "x"}}), rule);
}

}  // namespace
}  // namespace coupler::safetensors

// Validation of a db_op, options, and filling a db_error.
#include "common/op.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "common/options.h"

namespace db {
namespace {

float memory[64];

db_op small_all_reduce(uint64_t count) {
  db_op op{};
  op.struct_size = sizeof(op);
  op.kind = DB_ALL_REDUCE;
  op.dtype = DB_F32;
  op.reduce = DB_SUM;
  op.memory = DB_MEMORY_HOST;
  op.count = count;
  op.send = memory;
  op.recv = memory + 32;
  return op;
}

std::string problem(const db_op& raw, int32_t rank = 0, int32_t size = 2) {
  Op op;
  return validate(&raw, rank, size, 1'000'000, &op).message;
}

TEST(Validate_GoodOperation_HasSizesAndDeadline, FromTheDefault) {
  Op op;
  const db_op raw = small_all_reduce(8);
  ASSERT_TRUE(validate(&raw, 0, 2, 5'000'000, &op).ok());
  EXPECT_EQ(op.send_size, 8u);
  EXPECT_EQ(op.element, 4u);
  EXPECT_FALSE(op.in_place);
  EXPECT_EQ(op.timeout_ns, 5'000'000);
}

TEST(Validate_WrongInput_NamesIt, AndTheValidOnes) {
  db_op op = small_all_reduce(8);
  op.struct_size = 16;
  EXPECT_NE(problem(op).find("struct_size"), std::string::npos);
  op = small_all_reduce(8);
  op.dtype = DB_F8_E5M2;
  EXPECT_NE(problem(op).find("f8_e5m2 with sum"), std::string::npos);
  op = small_all_reduce(8);
  op.send = nullptr;
  EXPECT_NE(problem(op).find("send is NULL"), std::string::npos);
  op = small_all_reduce(8);
  op.send = reinterpret_cast<char*>(memory) + 2;
  EXPECT_NE(problem(op).find("aligned"), std::string::npos);
  op = small_all_reduce(8);
  op.recv = memory + 4;
  EXPECT_NE(problem(op).find("overlap"), std::string::npos);
  op = small_all_reduce(UINT64_MAX / 2);
  EXPECT_NE(problem(op).find("overflow"), std::string::npos);
  op = small_all_reduce(8);
  op.timeout_ns = -1;
  EXPECT_NE(problem(op).find("negative"), std::string::npos);
  op = small_all_reduce(8);
  op.kind = DB_BROADCAST;
  op.root_or_peer = 2;
  EXPECT_NE(problem(op).find("0 to 1"), std::string::npos);
  op.kind = DB_SEND;
  op.root_or_peer = 0;
  EXPECT_NE(problem(op).find("itself"), std::string::npos);
  op.root_or_peer = 1;
  op.tag = 40000;
  EXPECT_NE(problem(op).find("0 to 32767"), std::string::npos);
  op.kind = DB_ALL_TO_ALL_V;
  EXPECT_NE(problem(op).find("recv_counts is NULL"), std::string::npos);
  const uint64_t send_counts[] = {1, 4};
  const uint64_t recv_counts[] = {3, 2};
  op.send_counts = send_counts;
  op.recv_counts = recv_counts;
  EXPECT_NE(problem(op, 1).find("(1) sends itself 4 elements (send_counts), but receives 2"),
            std::string::npos);
}

TEST(Validate_InPlaceForms_AreSeen, WhereTheTableAllowsThem) {
  Op op;
  db_op raw = small_all_reduce(8);
  raw.recv = memory;
  ASSERT_TRUE(validate(&raw, 1, 2, 1, &op).ok());
  EXPECT_TRUE(op.in_place);
  raw = small_all_reduce(8);
  raw.kind = DB_ALL_GATHER;
  raw.recv = memory;
  raw.send = memory + 8;
  ASSERT_TRUE(validate(&raw, 1, 2, 1, &op).ok());
  EXPECT_TRUE(op.in_place);
  EXPECT_NE(problem(raw, 0), "");  // for rank 0, send is not its own part
  raw.kind = DB_REDUCE_SCATTER;
  raw.send = memory;
  raw.recv = memory + 8;
  ASSERT_TRUE(validate(&raw, 1, 2, 1, &op).ok());
  EXPECT_TRUE(op.in_place);
  const uint64_t sends[] = {2, 3}, recvs[] = {2, 4};
  raw.kind = DB_ALL_TO_ALL_V;
  raw.recv = memory;
  raw.send_counts = sends;
  raw.recv_counts = recvs;
  EXPECT_NE(problem(raw).find("in-place operation needs equal"), std::string::npos);
}

TEST(Validate_NothingToMove_TakesNull, OfAnyKind) {
  for (db_kind kind = DB_ALL_REDUCE; kind <= DB_RECV; ++kind) {
    const uint64_t none[] = {0, 0};
    db_op raw = small_all_reduce(0);
    raw.kind = kind;
    raw.send = raw.recv = nullptr;
    raw.send_counts = raw.recv_counts = none;
    raw.root_or_peer = is_point_to_point(kind) ? 1 : 0;
    EXPECT_EQ(problem(raw), "") << kind_name(kind);
  }
}

TEST(KeepCounts_CopiedArrays_OutliveTheCaller, WithBothArrays) {
  uint64_t sends[] = {1, 2}, recvs[] = {3, 4};
  Op op;
  op.send_counts = sends;
  op.recv_counts = recvs;
  std::vector<uint64_t> store;
  keep_counts(&op, 2, &store);
  sends[0] = recvs[1] = 99;
  EXPECT_EQ(op.send_counts[0], 1u);
  EXPECT_EQ(op.recv_counts[1], 4u);
}

constexpr db_option kNumber = i64_option("chunk_bytes", 4, "A number.");
constexpr db_option kRatio = i64_option("ratio", 2, "A ratio.");
constexpr db_option kWord = string_option("mode", "sync", "A word.");
constexpr const db_option* kDefaults[] = {&kNumber, &kRatio, &kWord};

Failure parse_option(const db_option& given, Options* options) {
  const db_option* const list[] = {&given};
  return Options::parse(kDefaults, 3, list, 1, options);
}

TEST(Options_Given_OverlayTheDefaults, OfEveryType) {
  Options options;
  ASSERT_TRUE(parse_option(i64_option("ratio", 3, nullptr), &options).ok());
  EXPECT_EQ(options.i64("ratio"), 3);
  EXPECT_EQ(options.i64("chunk_bytes"), 4);
  EXPECT_EQ(options.string("mode"), "sync");
}

TEST(Options_UnknownKey_NamesTheNearest, AndAllOfThem) {
  Options options;
  const Failure failure = parse_option(i64_option("chunk_byte", 3, nullptr), &options);
  EXPECT_EQ(failure.status, DB_ERR_UNKNOWN_OPTION);
  EXPECT_EQ(failure.message,
            "unknown option 'chunk_byte', did you mean 'chunk_bytes'? Valid options: chunk_bytes, "
            "ratio, mode");
}

TEST(Options_WrongType_SaysWhatIsExpected, AndWhatCame) {
  Options options;
  const Failure failure = parse_option(string_option("chunk_bytes", "4", nullptr), &options);
  EXPECT_EQ(failure.status, DB_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(failure.message, "option 'chunk_bytes' must be an integer, but is a string");
}

TEST(Report_ShortBuffer_CutsAtACharacter, AndAlwaysEnds) {
  char text[6];
  db_error error{sizeof(db_error), 0, 0, 0, 0, text, sizeof(text)};
  const Failure failure = Failure::make(DB_ERR_TIMEOUT, "abc\xC3\xA4\xC3\xA4", 3, 7, 110);
  EXPECT_EQ(report(failure, &error), DB_ERR_TIMEOUT);
  EXPECT_STREQ(text, "abc\xC3\xA4");
  EXPECT_EQ(error.failed_rank, 7);
  EXPECT_EQ(error.native_code, 110);
  EXPECT_EQ(error.flags, 3u);
  EXPECT_EQ(report(failure, nullptr), DB_ERR_TIMEOUT);
  error.message = nullptr;
  EXPECT_EQ(report(failure, &error), DB_ERR_TIMEOUT);
}

}  // namespace
}  // namespace db

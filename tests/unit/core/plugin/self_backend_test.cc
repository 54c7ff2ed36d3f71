#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "folder.h"
#include "plugin/plugin.h"

namespace coupler::test {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

class SelfBackend : public ::testing::Test {
 protected:
  SelfBackend() {
    db_communicator_params params = {};
    params.struct_size = sizeof(params);
    params.size = 1;
    params.default_timeout_ns = 30 * kSecond;
    EXPECT_EQ(plugin::single_backend().create(&params, &communicator_, nullptr), DB_OK);
  }
  ~SelfBackend() override { communicator_->functions->destroy(communicator_); }

  static db_op make(db_kind kind, db_dtype dtype, const void* send, void* recv, uint64_t count,
                    db_reduce reduce = 0) {
    db_op op = {};
    op.struct_size = sizeof(op);
    op.kind = kind;
    op.dtype = dtype;
    op.reduce = reduce;
    op.send = send;
    op.recv = recv;
    op.count = count;
    op.memory = DB_MEMORY_HOST;
    return op;
  }
  db_status submit(const db_op& op, db_request** request = nullptr) {
    db_request* made = nullptr;
    const db_status status = communicator_->functions->submit(communicator_, &op, &made, nullptr);
    if (request != nullptr) *request = made;
    return status;
  }
  bool supports(const db_op& op) {
    int32_t score = -1;
    EXPECT_EQ(communicator_->functions->supports(communicator_, &op, &score), DB_OK);
    return score > 0;
  }
  db_status wait(db_request* request, int64_t timeout = -1) {
    return communicator_->functions->wait_host(request, timeout, nullptr);
  }
  void release(db_request* request) { communicator_->functions->release(request); }

  db_communicator* communicator_ = nullptr;
};

TEST_F(SelfBackend, EveryCollective_Copies) {
  const std::array<int32_t, 5> send = {1, -2, 3, -4, 5};
  const uint64_t counts[] = {5};
  for (db_kind kind = DB_ALL_REDUCE; kind <= DB_SCATTER; ++kind) {
    std::array<int32_t, 5> recv = {};
    db_op op = make(kind, DB_I32, send.data(), recv.data(), 5, DB_SUM);
    op.send_counts = op.recv_counts = counts;
    EXPECT_TRUE(supports(op)) << kind;
    EXPECT_EQ(submit(op), DB_OK) << kind;
    EXPECT_EQ(recv, send) << kind;
  }
  EXPECT_EQ(submit(make(DB_BARRIER, 0, nullptr, nullptr, 0)), DB_OK);
}

TEST_F(SelfBackend, EveryDtypeAndReduction_SubmitsWhatItSupports) {
  std::array<double, 4> send = {}, recv = {};
  for (db_dtype dtype = 0; dtype <= DB_F8_E5M2 + 1; ++dtype) {
    for (db_reduce reduce = 0; reduce <= DB_BXOR + 1; ++reduce) {
      const db_op op = make(DB_ALL_REDUCE, dtype, send.data(), recv.data(), 2, reduce);
      EXPECT_EQ(submit(op), supports(op) ? DB_OK : DB_ERR_UNSUPPORTED) << dtype << " " << reduce;
    }
    const db_op copy = make(DB_BROADCAST, dtype, send.data(), recv.data(), 2);
    EXPECT_EQ(supports(copy), dtype >= DB_I8 && dtype <= DB_F8_E5M2);
  }
  EXPECT_FALSE(supports(make(DB_ALL_REDUCE, DB_BOOL, nullptr, nullptr, 0, DB_AVG)));
  EXPECT_FALSE(supports(make(DB_ALL_REDUCE, DB_F32, nullptr, nullptr, 0, DB_BAND)));
  EXPECT_TRUE(supports(make(DB_ALL_REDUCE, DB_BOOL, nullptr, nullptr, 0, DB_BXOR)));
}

TEST_F(SelfBackend, PremulSum_Scales) {
  std::array<float, 3> f32 = {1, 2, -3};
  db_op op = make(DB_ALL_REDUCE, DB_F32, f32.data(), f32.data(), 3, DB_PREMUL_SUM);
  op.scale = 0.5;
  EXPECT_EQ(submit(op), DB_OK);
  EXPECT_EQ(f32, (std::array<float, 3>{0.5f, 1, -1.5f}));
  // 1, -2.5, infinity, the smallest subnormal, 65504; halved and rounded to even.
  std::array<uint16_t, 5> f16 = {0x3c00, 0xc100, 0x7c00, 0x0001, 0x7bff};
  op = make(DB_ALL_REDUCE, DB_F16, f16.data(), f16.data(), 5, DB_PREMUL_SUM);
  op.scale = 0.5;
  EXPECT_EQ(submit(op), DB_OK);
  EXPECT_EQ(f16, (std::array<uint16_t, 5>{0x3800, 0xbd00, 0x7c00, 0x0000, 0x77ff}));
  std::array<uint16_t, 3> bf16 = {0x3f80, 0xc020, 0x7f80};
  op = make(DB_ALL_REDUCE, DB_BF16, bf16.data(), bf16.data(), 3, DB_PREMUL_SUM);
  op.scale = 2;
  EXPECT_EQ(submit(op), DB_OK);
  EXPECT_EQ(bf16, (std::array<uint16_t, 3>{0x4000, 0xc0a0, 0x7f80}));
}

TEST_F(SelfBackend, EveryF16_SurvivesScalingByOne) {
  std::vector<uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  std::vector<uint16_t> result(all.size());
  db_op op = make(DB_ALL_REDUCE, DB_F16, all.data(), result.data(), all.size(), DB_PREMUL_SUM);
  op.scale = 1;
  ASSERT_EQ(submit(op), DB_OK);
  for (size_t i = 0; i < all.size(); ++i) {
    const bool nan = (i & 0x7c00) == 0x7c00 && (i & 0x3ff) != 0;
    if (nan) {
      EXPECT_EQ(result[i] & 0x7e00, 0x7e00);
    } else {
      EXPECT_EQ(result[i], all[i]);
    }
  }
}

TEST_F(SelfBackend, WrongArguments_AreRefused) {
  int32_t value = 0;
  db_op op = make(DB_BROADCAST, DB_I32, &value, &value, 1);
  op.root_or_peer = 1;
  EXPECT_EQ(submit(op), DB_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(submit(make(DB_BROADCAST, DB_I32, nullptr, &value, 1)), DB_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(submit(make(DB_ALL_GATHER_V, DB_I32, &value, &value, 1)), DB_ERR_INVALID_ARGUMENT);
  op = make(DB_BROADCAST, DB_I32, &value, &value, 1);
  op.memory = DB_MEMORY_CUDA;
  EXPECT_EQ(submit(op), DB_ERR_UNSUPPORTED);
}

TEST_F(SelfBackend, SendThenReceive_MatchByTag) {
  const std::array<int64_t, 2> first = {1, 2}, second = {3, 4};
  std::array<int64_t, 2> got = {};
  db_op send = make(DB_SEND, DB_I64, first.data(), nullptr, 2);
  db_request *sent_first = nullptr, *sent_second = nullptr;
  send.tag = 1;
  EXPECT_EQ(submit(send, &sent_first), DB_IN_PROGRESS);
  send.tag = 2;
  send.send = second.data();
  EXPECT_EQ(submit(send, &sent_second), DB_IN_PROGRESS);
  EXPECT_EQ(communicator_->functions->test(sent_first, nullptr), DB_IN_PROGRESS);
  db_op recv = make(DB_RECV, DB_I64, nullptr, got.data(), 2);
  recv.tag = 2;
  EXPECT_EQ(submit(recv), DB_OK);
  EXPECT_EQ(got, second);
  EXPECT_EQ(wait(sent_second), DB_OK);
  recv.tag = 1;
  EXPECT_EQ(submit(recv), DB_OK);
  EXPECT_EQ(got, first);
  EXPECT_EQ(wait(sent_first), DB_OK);
  release(sent_first);
  release(sent_second);
}

TEST_F(SelfBackend, ReceiveFirst_IsWokenBySend) {
  int32_t got = 0, value = 7;
  db_request* received = nullptr;
  EXPECT_EQ(submit(make(DB_RECV, DB_I32, nullptr, &got, 1), &received), DB_IN_PROGRESS);
  EXPECT_EQ(wait(received, 1000), DB_ERR_TIMEOUT);  // harmless
  std::thread waiter([&] { EXPECT_EQ(wait(received), DB_OK); });
  EXPECT_EQ(submit(make(DB_SEND, DB_I32, &value, nullptr, 1)), DB_OK);
  waiter.join();
  EXPECT_EQ(got, 7);
  release(received);
}

TEST_F(SelfBackend, SizesThatDiffer_AreAMismatchAndKillIt) {
  std::array<int32_t, 2> values = {};
  db_request* received = nullptr;
  EXPECT_EQ(submit(make(DB_RECV, DB_I32, nullptr, values.data(), 2), &received), DB_IN_PROGRESS);
  EXPECT_EQ(submit(make(DB_SEND, DB_I32, values.data(), nullptr, 1)), DB_ERR_MISMATCH);
  EXPECT_EQ(wait(received), DB_ERR_MISMATCH);
  EXPECT_EQ(communicator_->functions->async_error(communicator_, nullptr), DB_ERR_MISMATCH);
  EXPECT_EQ(submit(make(DB_BARRIER, 0, nullptr, nullptr, 0)), DB_ERR_ABORTED);
  release(received);
}

TEST_F(SelfBackend, Deadline_EndsALonelyReceive) {
  int32_t got = 0;
  db_op op = make(DB_RECV, DB_I32, nullptr, &got, 1);
  op.timeout_ns = 1'000'000;
  db_request* received = nullptr;
  EXPECT_EQ(submit(op, &received), DB_IN_PROGRESS);
  std::array<char, 128> text = {};
  db_error error = {sizeof(db_error), 0, 0, 0, 0, text.data(), text.size()};
  EXPECT_EQ(communicator_->functions->wait_host(received, -1, &error), DB_ERR_TIMEOUT);
  EXPECT_EQ(error.flags, uint32_t{DB_ERROR_COMM_DEAD});
  expect_text(text.data(), "no matching send or receive");
  release(received);
}

TEST_F(SelfBackend, Abort_EndsPendingAndLaterOperations) {
  int32_t got = 0;
  db_request* received = nullptr;
  EXPECT_EQ(submit(make(DB_RECV, DB_I32, nullptr, &got, 1), &received), DB_IN_PROGRESS);
  EXPECT_EQ(communicator_->functions->abort(communicator_), DB_OK);
  EXPECT_EQ(wait(received), DB_ERR_ABORTED);
  EXPECT_EQ(submit(make(DB_BARRIER, 0, nullptr, nullptr, 0)), DB_ERR_ABORTED);
  release(received);
}

TEST_F(SelfBackend, Split_GivesAnIndependentOne) {
  db_communicator* part = nullptr;
  EXPECT_EQ(communicator_->functions->split(communicator_, -1, 0, &part, nullptr), DB_OK);
  EXPECT_EQ(part, nullptr);
  ASSERT_EQ(communicator_->functions->split(communicator_, 3, 0, &part, nullptr), DB_OK);
  EXPECT_EQ(part->size, 1);
  EXPECT_EQ(communicator_->functions->abort(communicator_), DB_OK);
  EXPECT_EQ(part->functions->async_error(part, nullptr), DB_OK);
  part->functions->destroy(part);
}

TEST(SelfBackendCreate_WrongWorldOrOption, IsRefused) {
  db_communicator_params params = {};
  params.struct_size = sizeof(params);
  params.size = 2;
  std::array<char, 128> text = {};
  db_error error = {sizeof(db_error), 0, 0, 0, 0, text.data(), text.size()};
  db_communicator* made = nullptr;
  EXPECT_EQ(plugin::single_backend().create(&params, &made, &error), DB_ERR_INVALID_ARGUMENT);
  expect_text(text.data(), "single is for one process, not for rank 0 of 2");
  params.size = 1;
  db_option option = {};
  option.struct_size = sizeof(option);
  option.key = "speed";
  const db_option* const options[] = {&option};
  params.options = options;
  params.option_count = 1;
  EXPECT_EQ(plugin::single_backend().create(&params, &made, &error), DB_ERR_UNKNOWN_OPTION);
  expect_text(text.data(), "unknown option \"speed\"");
}

}  // namespace
}  // namespace coupler::test

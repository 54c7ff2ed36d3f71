#include "data/sample_order.h"

#include <coupler/error.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>

namespace coupler::data {
namespace {

template <class Function>
std::string order_refusal(const Function& function) {
  try {
    function();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "accepted";
}

void expect_part(const std::string& message, const std::string& part) {
  EXPECT_NE(message.find(part), std::string::npos) << message;
}

TEST(SampleOrder, OfIndices_IsTheirs) {
  const SampleOrder order =
      order_of_indices({3, 0, 3}, {.epoch = 2, .size = 3, .dataset_samples = 4});
  EXPECT_EQ(order.samples, (std::vector<size_t>{3, 0, 3}));
  EXPECT_TRUE(order.begins.empty());
}

TEST(SampleOrder, OfBatches_KeepsTheirBordersOnlyIfTheyDifferInSize) {
  const std::vector<std::vector<size_t>> batches{{3, 1}, {2, 0}, {4}};
  const OrderLimits limits{.size = 3, .dataset_samples = 5};
  const SampleOrder free = order_of_batches(batches, limits);
  EXPECT_EQ(free.samples, (std::vector<size_t>{3, 1, 2, 0, 4}));
  EXPECT_EQ(free.begins, (std::vector<size_t>{0, 2, 4, 5}));
  OrderLimits sized = limits;
  sized.batch_size = 2;
  EXPECT_EQ(order_of_batches(batches, sized).samples, free.samples);
  EXPECT_TRUE(order_of_batches(batches, sized).begins.empty());
}

TEST(SampleOrder, BeyondItsLimits_IsRefusedNamingThePlace) {
  const OrderLimits limits{.epoch = 7, .size = 2, .dataset_samples = 5};
  expect_part(order_refusal([&] { order_of_indices({1}, limits); }),
              "the sampler in epoch 7: indices() returned 1, but size() is 2");
  expect_part(order_refusal([&] {
                order_of_indices({1, 5}, limits);
              }),
              "it gives sample 5 at position 1, but the dataset has 5");
  expect_part(order_refusal([&] { order_of_batches({{1}, {}}, limits); }), "its batch 1 is empty");
  expect_part(order_refusal([&] {
                order_of_batches({{1}, {2}, {3}}, limits);
              }),
              "the batch sampler in epoch 7: batches() returned 3, but size() is 2");
  expect_part(order_refusal([&] {
                order_of_batches({{1}, {2, 9}}, limits);
              }),
              "sample 9 at position 1 of batch 1");
}

TEST(SampleOrder, Fingerprints_TellOrdersApart) {
  std::mt19937_64 random(4);
  std::set<int64_t> seen;
  SampleOrder order{{0, 1, 2, 3, 4, 5, 6, 7}, {}};
  EXPECT_EQ(fingerprint(order), fingerprint(order));
  size_t different = 0;
  std::set<std::vector<size_t>> orders;
  for (int i = 0; i < 2000; ++i) {
    std::shuffle(order.samples.begin(), order.samples.end(), random);
    const bool is_new = orders.insert(order.samples).second;
    EXPECT_EQ(seen.insert(fingerprint(order)).second, is_new);
    EXPECT_GE(fingerprint(order), 0);
    different += is_new ? 1 : 0;
  }
  EXPECT_GT(different, 1000u);
  SampleOrder cut = order, cut_elsewhere = order;
  cut.begins = {0, 3, 8};
  cut_elsewhere.begins = {0, 4, 8};
  EXPECT_NE(fingerprint(cut), fingerprint(cut_elsewhere));
  EXPECT_NE(fingerprint(cut), fingerprint(order));
  EXPECT_NE(fingerprint({{}, {}}), fingerprint({{0}, {}}));
}

TEST(SampleOrder, FirstDifference_IsFoundAndDescribed) {
  const SampleOrder one{{4, 5, 6}, {0, 1, 3}}, other{{4, 5, 6}, {0, 2, 3}};
  const auto flat = flattened(one), other_flat = flattened(other);
  EXPECT_EQ(flat, (std::vector<int64_t>{4, kEndOfBatch, 5, 6, kEndOfBatch}));
  EXPECT_EQ(first_difference(flat, flat), std::nullopt);
  EXPECT_EQ(first_difference(flat, other_flat), 1u);
  EXPECT_EQ(first_difference({1, 2}, {1, 2, 3}), 2u);
  EXPECT_EQ(describe_place(flat, 1), "the end of batch 0");
  EXPECT_EQ(describe_place(flat, 3), "sample 6 in batch 1");
  EXPECT_EQ(describe_place({8, 9}, 1), "sample 9 at position 1");
  EXPECT_EQ(describe_place({8, 9}, 2), "only 2 entries");
  EXPECT_EQ(describe_value(kNothingMore), "nothing more");
}

}  // namespace
}  // namespace coupler::data

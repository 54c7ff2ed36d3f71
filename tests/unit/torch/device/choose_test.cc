#include <coupler/error.h>
#include <gtest/gtest.h>
#include <test_device.h>

#include "device/device.h"

namespace coupler::device {
namespace {

rendezvous::ProcessInfo local(int rank, int world_size) {
  rendezvous::ProcessInfo process;
  process.rank = process.local_rank = rank;
  process.world_size = process.local_world_size = world_size;
  return process;
}

std::string refusal(const std::string& wanted) {
  try {
    choose_device(wanted, local(0, 1));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfig);
    EXPECT_EQ(error.detail().subject, "training.device");
    return error.what();
  }
  ADD_FAILURE() << "no exception was thrown";
  return {};
}

void expect_says(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(ChooseDevice, WithoutAnIndex_IsTheLocalRanks_SharedInTurn) {
  testing::test_device(0);
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(choose_device("test_accelerator", local(rank, 4)), testing::test_device(rank % 2));
  }
  EXPECT_EQ(choose_device("test_accelerator:1", local(0, 4)), testing::test_device(1));
  EXPECT_TRUE(choose_device("cpu", local(3, 4)).is_cpu());
}

TEST(ChooseDevice, Auto_WithoutCuda_IsTheCpu) {
  if (why_no_cuda().empty()) GTEST_SKIP() << "this machine has a CUDA device";
  EXPECT_TRUE(choose_device("auto", local(0, 1)).is_cpu());
}

TEST(ChooseDevice, CudaWithoutOne_SaysWhy_AndWhatToDo) {
  if (why_no_cuda().empty()) GTEST_SKIP() << "this machine has a CUDA device";
  const std::string text = refusal("cuda");
  expect_says(text, why_no_cuda());
  expect_says(text, "scripts/setup --cuda");
  expect_says(text, "training.device = \"cpu\"");
}

TEST(ChooseDevice, WhatIsNoDevice_IsRefused) {
  expect_says(refusal("gpu"), "LibTorch does not know this device");
  expect_says(refusal("cuda:x"), "use \"auto\", \"cpu\", \"cuda\" or \"cuda:1\"");
  expect_says(refusal("meta"), "this LibTorch cannot compute on it");
  expect_says(refusal("xpu"), "this LibTorch cannot compute on it");
}

TEST(ChooseDevice, AnIndexThatIsNotThere_IsRefused) {
  testing::test_device(0);
  expect_says(refusal("test_accelerator:7"), "sees 2 of them, numbered from 0");
}

}  // namespace
}  // namespace coupler::device

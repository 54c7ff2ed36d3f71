// What travels around the ring while ranks compute; e2e/mesh has kinds of attention.
#include "context_parallel/ring_attention.h"

#include <ATen/Functions.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string_view>
#include <thread>
#include <vector>

#include "core/comm/ranks.h"

namespace coupler::context_parallel {
namespace {

constexpr double kScaleOfScores = 0.3;

struct WholeAttention {
  at::Tensor query, key, value, output;  // with gradients
};

at::Tensor values_of_attention(double first) {
  return at::arange(2 * 2 * 8 * 4, at::kFloat).add(first).sin().view({2, 2, 8, 4});
}

at::Tensor tokens_of(const at::Tensor& whole, int rank) { return whole.narrow(2, 4 * rank, 4); }

WholeAttention whole_attention(const at::Tensor& of_output) {
  std::vector<at::Tensor> leaves;
  for (const double first : {1.0, 2.0, 3.0})
    leaves.push_back(values_of_attention(first).requires_grad_(true));
  const at::Tensor output = at::scaled_dot_product_attention(
      leaves[0], leaves[1], leaves[2], {}, /*dropout_p=*/0, /*is_causal=*/false, kScaleOfScores);
  output.backward(of_output);
  return {leaves[0], leaves[1], leaves[2], output};
}

thread_local int rank_of_thread = 0, blocks_of_thread = 0;
std::atomic<bool> second_block_began{false};

// Rank 1 stays in its first block of backward until rank 0 has begun its second.
std::unique_ptr<at::ObserverContext> on_operation(const at::RecordFunction& function) {
  if (std::string_view(function.name()) !=
      "aten::_scaled_dot_product_flash_attention_for_cpu_backward")
    return nullptr;
  const int block = blocks_of_thread++;
  if (rank_of_thread == 0 && block == 1) second_block_began.store(true);
  if (rank_of_thread == 0 || block > 0) return nullptr;
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!second_block_began.load() && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(second_block_began.load()) << "it waits for the gradients of rank 1's first block";
  return nullptr;
}

TEST(RingAttention, Backward_ComputesABlockWhileGradientsTravel) {
  const at::Tensor of_output = values_of_attention(5);
  const WholeAttention whole = whole_attention(of_output);
  testing::expect_no_error(testing::run_ranks(2, [&](comm::Communicator& of_rank) {
    const int rank = of_rank.rank();
    rank_of_thread = rank;
    at::addThreadLocalCallback(at::RecordFunctionCallback(&on_operation));
    std::vector<at::Tensor> own;
    for (const at::Tensor& input : {whole.query, whole.key, whole.value})
      own.push_back(tokens_of(input.detach(), rank).clone().requires_grad_(true));
    const at::Tensor output =
        ring_attention(own[0], own[1], own[2], /*causal=*/false, kScaleOfScores,
                       std::shared_ptr<comm::Communicator>(&of_rank, [](comm::Communicator*) {}));
    output.backward(tokens_of(of_output, rank));
    EXPECT_EQ(blocks_of_thread, 2);
    const auto expect_close = [&](const at::Tensor& ours, const at::Tensor& all, const char* what) {
      EXPECT_TRUE(at::allclose(ours, tokens_of(all, rank), 1e-4, 1e-5)) << what;
    };
    expect_close(output, whole.output, "the result");
    expect_close(own[0].grad(), whole.query.grad(), "the queries' gradient");
    expect_close(own[1].grad(), whole.key.grad(), "the keys' gradient");
    expect_close(own[2].grad(), whole.value.grad(), "the values' gradient");
  }));
}

// What comes from other ranks would have no graph, so that its share would silently be missing.
TEST(RingAttention, GradientsOfGradients_AreRefused) {
  const at::Tensor own = tokens_of(values_of_attention(1), 0).clone().requires_grad_(true);
  const at::Tensor output = ring_attention(own, own, own, /*causal=*/false, kScaleOfScores,
                                           comm::Communicator::made_up("context", 2));
  EXPECT_THROW(output.sum().backward({}, /*retain_graph=*/true, /*create_graph=*/true), Error);
}

}  // namespace
}  // namespace coupler::context_parallel

// Operations on fake tensors give the same shapes, strides and dtypes as real ones. A dry run never
// ends, so this is a program of its own.
#include "dry_run/fake_tensors.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <coupler/error.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "tensor_parallel/overlapped_product.h"

namespace coupler::dry_run {
namespace {

class Counter final : public FakeObserver {
 public:
  void made(uint64_t storage, uint64_t bytes) override { alive[storage] = bytes; }
  void gone(uint64_t storage) override { alive.erase(storage); }
  void used(const at::Tensor&) override {}
  uint64_t bytes() const {
    uint64_t result = 0;
    for (const auto& [storage, size] : alive) result += size;
    return result;
  }
  std::map<uint64_t, uint64_t> alive;
};

Counter& counter() {
  static auto* const kCounter = [] {
    auto* const made = new Counter;
    begin_fake_tensors(*made);
    return made;
  }();
  return *kCounter;
}

at::Tensor fake(at::IntArrayRef sizes, bool trains = false) {
  at::Tensor real;
  {
    const RealTensors scope;
    real = at::ones(sizes);
  }
  return fake_like(real).requires_grad_(trains);
}

// Runs the same code twice: with memory, then without.
void expect_same_shapes(const std::vector<std::vector<int64_t>>& inputs,
                        const std::function<at::Tensor(const std::vector<at::Tensor>&)>& run) {
  counter();
  std::vector<at::Tensor> real, faked;
  at::Tensor wanted, got;
  {
    const RealTensors scope;
    for (const auto& sizes : inputs) real.push_back(at::ones(sizes).requires_grad_(true));
    wanted = run(real);
    wanted.sum().backward();
  }
  for (const auto& sizes : inputs) faked.push_back(fake(sizes, true));
  got = run(faked);
  got.sum().backward();
  EXPECT_NE(fake_storage_of(got), 0u);
  EXPECT_EQ(got.sizes(), wanted.sizes());
  EXPECT_EQ(got.strides(), wanted.strides());
  EXPECT_EQ(got.scalar_type(), wanted.scalar_type());
  for (size_t i = 0; i < inputs.size(); ++i) {
    ASSERT_EQ(faked[i].grad().defined(), real[i].grad().defined());
    if (real[i].grad().defined()) {
      EXPECT_EQ(faked[i].grad().sizes(), real[i].grad().sizes());
    }
  }
}

using TensorList = std::vector<at::Tensor>;

TEST(FakeTensors, LinearAndNorm_HaveTheirShapes) {
  expect_same_shapes({{2, 4, 8}, {16, 8}, {16}, {16}, {16}}, [](const TensorList& in) {
    return at::layer_norm(at::gelu(at::linear(in[0], in[1], in[2])), {16}, in[3], in[4]);
  });
}

TEST(FakeTensors, Attention_RunsInTheKernelOfTheCpu) {
  expect_same_shapes({{2, 6, 24}}, [](const TensorList& in) {
    const auto parts = in[0].view({2, 6, 3, 2, 4}).permute({2, 0, 3, 1, 4}).unbind(0);
    return at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, true)
        .transpose(1, 2)
        .reshape({2, 6, 8});
  });
}

TEST(FakeTensors, EmbeddingAndLoss_TakeRealIndices) {
  expect_same_shapes({{10, 4}}, [](const TensorList& in) {
    const at::Tensor rows = at::embedding(in[0], at::arange(6));
    return at::cross_entropy_loss(rows, at::zeros({6}, at::kLong));
  });
}

TEST(FakeTensors, Convolutions_HaveTheirShapes) {
  expect_same_shapes({{2, 3, 8, 8}, {4, 3, 3, 3}, {4}, {4}}, [](const TensorList& in) {
    const at::Tensor x =
        at::batch_norm(at::conv2d(in[0], in[1]), in[2], in[3], {}, {}, true, 0.1, 1e-5, false);
    return at::max_pool2d(at::relu(x), 2).flatten(1);
  });
}

TEST(FakeTensors, Memory_IsCountedAndGivenBack) {
  const uint64_t before = counter().bytes();
  {
    const at::Tensor x = fake({1024, 1024});
    EXPECT_EQ(counter().bytes() - before, 4u << 20);
    const at::Tensor view = x.t();
    EXPECT_EQ(counter().bytes() - before, 4u << 20);
    const at::Tensor sum = x + view;
    EXPECT_EQ(counter().bytes() - before, 8u << 20);
    at::Tensor in_place = sum;
    in_place.mul_(2);
    EXPECT_EQ(counter().bytes() - before, 8u << 20);
  }
  EXPECT_EQ(counter().bytes(), before);
}

TEST(FakeTensors, LargeNewTensors_AreFakeAndSmallOnesReal) {
  counter();
  EXPECT_NE(fake_storage_of(at::zeros({1 << 20})), 0u);
  const at::Tensor small = at::full({4}, 3.0);
  EXPECT_EQ(fake_storage_of(small), 0u);
  EXPECT_EQ(small.sum().item<float>(), 12);
}

TEST(FakeTensors, NewMemoryLikeAFakeTensor_IsFake) {
  counter();
  const at::Tensor small = fake({2, 3}).new_empty({4, 5}, at::kBFloat16);
  EXPECT_NE(fake_storage_of(small), 0u);
  EXPECT_EQ(small.sizes(), (std::vector<int64_t>{4, 5}));
  EXPECT_EQ(small.scalar_type(), at::kBFloat16);
  EXPECT_EQ(fake_storage_of(at::ones({2}).new_empty({3})), 0u);
}

TEST(FakeTensors, RealMemoryThatFakeValuesAreWrittenTo_HasHarmlessValues) {
  counter();
  const at::Tensor real = at::zeros({2, 4});
  real.select(0, 1).add_(fake({4}));
  EXPECT_EQ(fake_storage_of(real), 0u);
  EXPECT_TRUE(at::equal(real, at::stack({at::zeros({4}), at::ones({4})})));
}

TEST(FakeTensors, OverlappedProductsOfMadeUpRanks_AreFake) {
  counter();
  namespace parallel = tensor_parallel;
  const parallel::Group group = comm::Communicator::made_up("layers", 2);
  const at::Tensor weight = fake({6, 8}, true);
  for (const auto result : {parallel::ResultExchange::kNone, parallel::ResultExchange::kSum,
                            parallel::ResultExchange::kOwnTokens}) {
    const parallel::Overlap overlap{.group = group, .result = result, .dim = 1, .chunks = 2};
    const at::Tensor x = fake({2, 4, 8}, true);
    const at::Tensor y = parallel::overlapped_product({x, weight, {}, /*out_in=*/true}, overlap);
    EXPECT_NE(fake_storage_of(y), 0u);
    y.backward(fake(y.sizes()));
    EXPECT_NE(fake_storage_of(x.grad()), 0u);
    EXPECT_NE(fake_storage_of(weight.grad()), 0u);
  }
}

// A batch may be real.
TEST(FakeTensors, OverlappedProductOfARealInput_IsFilled) {
  counter();
  const at::Tensor y =
      tensor_parallel::overlapped_product({at::ones({4, 8}), fake({6, 8}), {}, /*out_in=*/true},
                                          {.group = comm::Communicator::made_up("layers", 2),
                                           .result = tensor_parallel::ResultExchange::kSum,
                                           .chunks = 2});
  EXPECT_EQ(fake_storage_of(y), 0u);
  EXPECT_TRUE(at::equal(y, at::ones({4, 6})));
}

TEST(FakeTensors, Autocast_CastsAsOnTheCpu) {
  counter();
  const at::Tensor x = fake({4, 8}), w = fake({8, 8});
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const at::ScalarType type = at::linear(x, w).scalar_type();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_EQ(type, at::kBFloat16);
}

TEST(FakeTensors, Values_AreHarmlessWhereOneIsAskedFor) {
  counter();
  EXPECT_EQ(fake({3}).sum().item<float>(), 1);
  EXPECT_TRUE(at::isfinite(fake({3})).numel() == 3);
}

TEST(FakeTensors, SizesThatDependOnValues_NameTheOperation) {
  counter();
  const at::Tensor x = fake({3});
  for (const auto& [name, run] : std::vector<std::pair<std::string, std::function<void()>>>{
           {"aten::nonzero", [&] { at::nonzero(x); }},
           {"aten::masked_select", [&] { at::masked_select(x, x > 0); }}}) {
    try {
      run();
      FAIL() << name;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("dry run: " + name + " has results whose size"),
                std::string::npos)
          << error.what();
    }
  }
}

}  // namespace
}  // namespace coupler::dry_run

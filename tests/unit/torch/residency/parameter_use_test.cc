// Uses of parameters that no torch::nn module shows: raw views, ties, modes, threads, varying
// branches, TorchScript. Managed against plain.
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <atomic>
#include <sstream>
#include <thread>

#include "comparison.h"
#include "residency/intercept.h"

namespace coupler::residency {
namespace {

namespace nn = torch::nn;
using namespace testing;  // NOLINT(google-build-using-namespace): comparison.h

// A small language model: an embedding whose weight is also the head's, and layers that are used
// twice, only in a branch, or frozen.
struct OddNet : nn::Module {
  OddNet() {
    tied = register_parameter("tied", embedding->weight);
    frozen->weight.set_requires_grad(false);
    frozen->bias.set_requires_grad(false);
  }
  at::Tensor forward(const at::Tensor& tokens) {
    at::Tensor x = embedding(tokens);
    x = twice(torch::tanh(twice(x)));
    x = torch::relu(frozen(x)) + x;
    if (branch) x = never(x);
    return nn::functional::linear(x, tied);
  }
  nn::Embedding embedding = register_module("embedding", nn::Embedding(20, 8));
  nn::Linear twice = register_module("twice", nn::Linear(8, 8));
  nn::Linear never = register_module("never", nn::Linear(8, 8));
  nn::Linear frozen = register_module("frozen", nn::Linear(8, 8));
  at::Tensor tied;
  bool branch = false;
};

std::shared_ptr<OddNet> make_odd_net() {
  torch::manual_seed(5);
  return std::make_shared<OddNet>();
}

Subject odd_subject() {
  auto net = make_odd_net();
  return {net, [net](Inputs&) { return Tensors{net->forward(Inputs::index(20, {3, 4}))}; }};
}

// A Linear(6, 6) used in an unusual way.
Make linear_used(std::function<Tensors(nn::Linear&, Inputs&)> use) {
  return [use = std::move(use)] {
    torch::manual_seed(3);
    nn::Linear linear(6, 6);
    return Subject{linear.ptr(),
                   [linear, use](Inputs& inputs) mutable { return use(linear, inputs); }};
  };
}

TEST(ParameterUse, TiedTwiceNeverFrozen_EqualsPlain) {
  expect_managed_equals_plain(odd_subject);
  expect_managed_equals_plain(odd_subject, {.prefetch = 2, .live_bytes = 1024});
}

struct Raw {
  const char* name;
  Tensors (*use)(nn::Linear&, Inputs&);
};

const Raw kRaw[] = {
    {"Transposed",
     [](nn::Linear& m, Inputs& in) -> Tensors {
       return {in.real({3, 6}).mm(m->weight.t())};
     }},
    {"Sliced",
     [](nn::Linear& m, Inputs& in) -> Tensors {
       return {in.real({3, 2}).mm(m->weight.slice(0, 1, 3)), m->bias.slice(0, 0, 6, 2)};
     }},
    {"Concatenated",
     [](nn::Linear& m, Inputs&) -> Tensors {
       return {torch::cat({m->weight, m->bias.unsqueeze(0), m->weight}, 0)};
     }},
    {"Stacked",
     [](nn::Linear& m, Inputs&) -> Tensors {
       return {torch::stack({m->weight, m->weight.t()})};
     }},
    {"Einsum",
     [](nn::Linear& m, Inputs& in) -> Tensors {
       return {torch::einsum("ij,kj->ik", {in.real({3, 6}), m->weight})};
     }},
    {"Indexed",
     [](nn::Linear& m, Inputs&) -> Tensors {
       return {m->weight.index({torch::tensor({4, 1, 4})}), m->weight[2],
               m->bias.masked_select(torch::tensor({true, false, true, true, false, false}))};
     }},
    {"ChunksExpandedReshaped",
     [](nn::Linear& m, Inputs&) -> Tensors {
       const auto chunks = m->weight.chunk(3, 1);
       return {chunks[2].reshape({4, 3}), m->bias.expand({4, 6}),
               m->weight.flatten().unfold(0, 5, 3)};
     }},
    {"ViewKept",
     [](nn::Linear& m, Inputs& in) -> Tensors {
       const at::Tensor view = m->weight.view({2, 18}).narrow(1, 0, 6);
       const at::Tensor y = torch::tanh(m->forward(in.real({3, 6})));
       return {y.mm(view.t())};
     }},
    {"ComputedFrom",
     [](nn::Linear& m, Inputs& in) -> Tensors {
       const at::Tensor normal = m->weight / m->weight.norm(2, 1, true);
       return {nn::functional::linear(in.real({3, 6}), normal, m->bias.exp())};
     }},
    {"InLists",
     [](nn::Linear& m, Inputs&) -> Tensors {
       return torch::_foreach_mul({m->weight, m->bias}, 2.0);
     }},
    {"OutArgument",
     [](nn::Linear& m, Inputs&) -> Tensors {
       const torch::NoGradGuard no_grad;
       at::Tensor out = torch::empty({6, 6});
       torch::mul_out(out, m->weight, m->weight);
       at::AutoGradMode grad(true);
       return {out, m->weight * out};
     }},
};

class RawUse : public ::testing::TestWithParam<Raw> {};
TEST_P(RawUse, Managed_EqualsPlain) { expect_managed_equals_plain(linear_used(GetParam().use)); }
INSTANTIATE_TEST_SUITE_P(All, RawUse, ::testing::ValuesIn(kRaw),
                         [](const auto& raw) { return raw.param.name; });

TEST(ParameterUse, DoubleBackward_EqualsPlain) {
  const auto use = [](nn::Linear& m, Inputs& in) -> Tensors {
    const at::Tensor x = in.real({3, 6});
    const at::Tensor y = torch::tanh(m->forward(x)).pow(3).sum();
    const auto gradients = torch::autograd::grad({y}, {x, m->weight}, {}, true, true);
    return {gradients[0], gradients[1]};
  };
  expect_managed_equals_plain(linear_used(use));
}

TEST(ParameterUse, Autocast_EqualsPlain) {
  const auto use = [](nn::Linear& m, Inputs& in) -> Tensors {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::Tensor y = m->forward(torch::relu(m->forward(in.real({3, 6}))));
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    return {y};
  };
  expect_managed_equals_plain(linear_used(use));
}

TEST(ParameterUse, WithoutGradients_EqualsPlain) {
  const auto plain = make_odd_net(), net = make_odd_net();
  Managed managed(strategy::describe(*net));
  const at::Tensor tokens = Inputs::index(20, {3, 4});
  const at::Tensor expected = plain->forward(tokens).detach();
  {
    const c10::InferenceMode inference;
    const at::Tensor y = net->forward(tokens);
    EXPECT_TRUE(y.is_inference());
    EXPECT_TRUE(torch::equal(y, expected));
  }
  {
    const torch::NoGradGuard no_grad;
    EXPECT_TRUE(torch::equal(net->forward(tokens), expected));
    EXPECT_TRUE(torch::equal(net->twice->weight.detach() * 2, plain->twice->weight * 2));
  }
  EXPECT_TRUE(torch::equal(net->forward(tokens), expected));
  EXPECT_EQ(managed.resident_units(), 1u);
  EXPECT_EQ(managed.pool.peak_bytes(), managed.largest_unit());
}

TEST(ParameterUse, CloneAfterRelease_HasTheValuesAndKeepsThem) {
  const auto plain = make_odd_net(), net = make_odd_net();
  Managed managed(strategy::describe(*net));
  net->forward(Inputs::index(20, {3, 4}));
  managed.residency().release_all();
  const at::Tensor copy = net->twice->weight.clone();
  const at::Tensor detached_view = net->twice->weight.detach();
  managed.residency().release_all();
  EXPECT_FALSE(has_intercept(copy));
  EXPECT_TRUE(torch::equal(copy, plain->twice->weight));
  EXPECT_TRUE(torch::equal(detached_view, plain->twice->weight));
  EXPECT_FLOAT_EQ(net->twice->bias[3].item<float>(), plain->twice->bias[3].item<float>());
  EXPECT_TRUE(torch::allclose(net->twice->weight, copy));
}

// Forward and backward from several threads on one model, with separate gradients.
TEST(ParameterUse, SeveralThreads_EqualPlain) {
  const auto gradients_of = [](OddNet& net) {
    const at::Tensor y = net.forward(Inputs::index(20, {3, 4}));
    return torch::autograd::grad({y.square().sum()},
                                 {net.embedding->weight, net.twice->weight, net.twice->bias});
  };
  const auto plain = make_odd_net();
  const auto expected = gradients_of(*plain);
  for (const int prefetch : {0, 2}) {
    const auto net = make_odd_net();
    Managed managed(strategy::describe(*net), {.prefetch = prefetch});
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 25; ++i) {
          const auto actual = gradients_of(*net);
          for (size_t k = 0; k < expected.size(); ++k) {
            wrong += !torch::allclose(actual[k], expected[k], 1e-6, 1e-6);
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong.load(), 0);
    managed.residency().release_all();
    EXPECT_EQ(managed.resident_units(), 0u);
  }
}

TEST(ParameterUse, BranchesDiffer_EqualsPlain) {
  for (const int prefetch : {0, 1, 2}) {
    const auto plain = make_odd_net(), net = make_odd_net();
    Managed managed(strategy::describe(*net), {.prefetch = prefetch});
    const auto forward = [](OddNet& odd) {
      return Tensors{odd.forward(Inputs::index(20, {3, 4}))};
    };
    const Subject expected{plain, [&](Inputs&) { return forward(*plain); }};
    const Subject actual{net, [&](Inputs&) { return forward(*net); }};
    for (const bool branch : {false, true, true, false, true, false, false}) {
      plain->branch = net->branch = branch;
      expect_same(run(actual), run(expected));
      managed.residency().end_of_pass();
      managed.residency().release_all();
    }
  }
}

// ---- TorchScript ----

torch::jit::Module make_script() {
  torch::manual_seed(9);
  torch::jit::Module inner("Inner");
  inner.register_parameter("weight", torch::randn({8, 8}, torch::requires_grad()), false);
  inner.register_parameter("bias", torch::randn({8}, torch::requires_grad()), false);
  inner.define(R"(
    def forward(self, x):
        return torch.tanh(torch.linear(x, self.weight, self.bias))
  )");
  torch::jit::Module module("Outer");
  module.register_module("inner", inner);
  module.register_parameter("scale", torch::randn({8}, torch::requires_grad()), false);
  module.define(R"(
    def forward(self, x, deep: bool):
        y = self.inner.forward(x)
        if deep:
            for i in range(3):
                y = self.inner.forward(y) + x
        return (y * self.scale).t()
  )");
  return module;
}

void expect_script_equals(torch::jit::Module managed_module, torch::jit::Module plain) {
  Managed managed(strategy::describe(managed_module), {.prefetch = 1});
  EXPECT_EQ(managed.residency().units().size(), 2u);
  // The profiling executor optimizes after a few calls.
  for (int pass = 0; pass < 6; ++pass) {
    SCOPED_TRACE(pass);
    const bool deep = pass % 3 != 0;
    std::vector<at::Tensor> results[2];
    for (const int which : {0, 1}) {
      torch::jit::Module& module = which == 0 ? plain : managed_module;
      const at::Tensor x = torch::linspace(-1, 1, 24).view({3, 8}).requires_grad_();
      const at::Tensor y = module.forward({x, deep}).toTensor();
      y.square().sum().backward();
      results[which] = {y.detach(), x.grad()};
      for (const at::Tensor& parameter : module.parameters()) {
        results[which].push_back(parameter.grad().clone());
        parameter.mutable_grad() = at::Tensor();
      }
    }
    for (size_t i = 0; i < results[0].size(); ++i) {
      EXPECT_TRUE(torch::allclose(results[1][i], results[0][i], 1e-6, 1e-6)) << i;
    }
    managed.residency().end_of_pass();
    managed.residency().release_all();
  }
  EXPECT_GE(managed.memory.fill_count(), 6u);
}

TEST(ParameterUse, ScriptModule_EqualsPlain) { expect_script_equals(make_script(), make_script()); }

TEST(ParameterUse, LoadedScriptModule_EqualsPlain) {
  std::stringstream stream;
  make_script().save(stream);
  expect_script_equals(torch::jit::load(stream), make_script());
}

// A function that is not a method: parameters are arguments.
TEST(ParameterUse, ScriptFunction_SeesValues) {
  const auto unit = torch::jit::compile("def f(w, x):\n    return torch.mm(x, w.t()) + w[0]\n");
  torch::manual_seed(3);
  nn::Linear plain(6, 6), linear(6, 6);
  {
    const torch::NoGradGuard no_grad;
    linear->weight.copy_(plain->weight);
  }
  Managed managed(strategy::describe(*linear));
  const at::Tensor x = torch::ones({2, 6});
  for (int i = 0; i < 4; ++i) {
    const auto expected = unit->run_method("f", plain->weight, x).toTensor();
    EXPECT_TRUE(torch::equal(unit->run_method("f", linear->weight, x).toTensor(), expected));
    managed.residency().release_all();
  }
}

}  // namespace
}  // namespace coupler::residency

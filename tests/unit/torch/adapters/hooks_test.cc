// Hooks of layers: what they see and change, in every way a layer is called; and refusals.
#include <coupler/activation_checkpoint.h>
#include <coupler/error.h>
#include <coupler/hooks.h>
#include <coupler/lora.h>
#include <gtest/gtest.h>
#include <torch/nn.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "refusal.h"

namespace coupler {
namespace {

namespace nn = torch::nn;
using Names = std::vector<std::string>;

// One layer of each kind that can have hooks, and the input it takes.
struct Sample {
  std::string kind;
  std::shared_ptr<nn::Module> module;
  std::function<at::Tensor(const at::Tensor&)> forward;
  at::Tensor input;
};

template <class Holder>
Sample sample(const char* kind, Holder layer, const at::Tensor& input) {
  return {kind, layer.ptr(), [layer](const at::Tensor& x) mutable { return layer->forward(x); },
          input};
}

std::vector<Sample> samples() {
  const at::Tensor image = at::randn({2, 4, 5, 5}), line = at::randn({2, 4, 6}),
                   volume = at::randn({2, 4, 3, 3, 3}), rows = at::randn({3, 4});
  return {
      sample("Linear of rows", nn::Linear(4, 3), rows),
      sample("Linear of three dimensions", nn::Linear(4, 3), at::randn({2, 3, 4})),
      sample("Linear of one dimension", nn::Linear(4, 3), at::randn({4})),
      sample("Linear without bias", nn::Linear(nn::LinearOptions(4, 3).bias(false)), rows),
      sample("square Linear", nn::Linear(4, 4), at::randn({2, 3, 4})),
      sample("Conv1d", nn::Conv1d(4, 2, 3), line),
      sample("Conv2d", nn::Conv2d(4, 2, 3), image),
      sample("Conv3d", nn::Conv3d(4, 2, 2), volume),
      sample("ConvTranspose1d", nn::ConvTranspose1d(4, 2, 3), line),
      sample("ConvTranspose2d", nn::ConvTranspose2d(4, 2, 3), image),
      sample("ConvTranspose3d", nn::ConvTranspose3d(4, 2, 2), volume),
      sample("Embedding", nn::Embedding(7, 3), at::arange(5)),
      sample("LayerNorm", nn::LayerNorm(nn::LayerNormOptions({4})), rows),
      sample("GroupNorm", nn::GroupNorm(2, 4), image),
      sample("BatchNorm1d", nn::BatchNorm1d(4), rows),
      sample("BatchNorm2d", nn::BatchNorm2d(4), image),
      sample("BatchNorm3d", nn::BatchNorm3d(4), volume),
      sample("InstanceNorm2d", nn::InstanceNorm2d(nn::InstanceNorm2dOptions(4).affine(true)),
             image),
      sample("PReLU", nn::PReLU(), rows),
  };
}

// The layer, as "layer" in a model.
struct ParentImpl : nn::Module {
  explicit ParentImpl(const std::shared_ptr<nn::Module>& layer) { register_module("layer", layer); }
};

TEST(Hooks, EveryKindOfLayer_CallsThemOnce_AndTakesWhatTheyReturn) {
  torch::manual_seed(4);
  for (const Sample& each : samples()) {
    ParentImpl model(each.module);
    const bool numbers = each.input.is_floating_point();
    const at::Tensor plain = each.forward(each.input);
    const at::Tensor of_changed = each.forward(numbers ? each.input * 2 : each.input.flip(0));
    std::vector<std::string> calls;
    at::Tensor gradient_seen;
    {
      HookHandle handle = add_hooks(model, "layer",
                                    {.pre_forward =
                                         [&](const std::string& layer, at::Tensor& input) {
                                           calls.push_back("pre " + layer);
                                           EXPECT_TRUE(input.equal(each.input)) << each.kind;
                                           input = numbers ? input * 2 : input.flip(0);
                                         },
                                     .post_forward =
                                         [&](const std::string& layer, at::Tensor& output) {
                                           calls.push_back("post " + layer);
                                           EXPECT_TRUE(output.allclose(of_changed)) << each.kind;
                                           output = output.square();
                                         },
                                     .backward =
                                         [&](const std::string& layer, at::Tensor& gradient) {
                                           calls.push_back("backward " + layer);
                                           gradient_seen = gradient;
                                           gradient = gradient * 3;
                                         }});
      EXPECT_EQ(handle.layers(), Names{"layer"});
      const at::Tensor output = each.forward(each.input);
      EXPECT_TRUE(output.allclose(of_changed.square())) << each.kind;
      const at::Tensor weight = each.module->named_parameters(false)["weight"];
      (output * 5).sum().backward();
      EXPECT_EQ(calls, (Names{"pre layer", "post layer", "backward layer"})) << each.kind;
      EXPECT_TRUE(gradient_seen.equal(at::full_like(output, 5))) << each.kind;
      // As without the hooks, with the same operations written out.
      const at::Tensor given = weight.grad().clone();
      calls.clear();
      handle.remove();
      for (at::Tensor& parameter : each.module->parameters()) parameter.mutable_grad().reset();
      (each.forward(numbers ? each.input * 2 : each.input.flip(0)).square() * 15).sum().backward();
      EXPECT_TRUE(given.allclose(weight.grad(), 1e-4, 1e-4)) << each.kind;
    }
    EXPECT_TRUE(calls.empty()) << each.kind;
    if (each.kind.find("Norm") == std::string::npos) {  // which have running statistics
      EXPECT_TRUE(each.forward(each.input).allclose(plain)) << each.kind;
    }
  }
}

TEST(Hooks, SeveralHooks_RunLikeNestedCalls_UntilTheyAreRemoved) {
  ParentImpl model(nn::Linear(2, 2).ptr());
  auto& layer = *model.named_children()["layer"]->as<nn::Linear>();
  std::string order;
  const auto hooks = [&](char name) -> LayerHooks {
    return {.pre_forward = [&order, name](const std::string&, at::Tensor&) { order += name; },
            .post_forward = [&order, name](const std::string&, at::Tensor&) { order += name; }};
  };
  HookHandle first = add_hooks(model, "*", hooks('a'));
  {
    const HookHandle second = add_hooks(model, "*", hooks('b'));
    for (const at::Tensor& x : {at::randn({3, 2}), at::randn({3, 3, 2})}) {
      order.clear();
      layer.forward(x);
      EXPECT_EQ(order, "abba");
    }
  }
  order.clear();
  layer.forward(at::randn({3, 2}));
  EXPECT_EQ(order, "aa");
  first.remove();
  layer.forward(at::randn({3, 2}));
  EXPECT_EQ(order, "aa");
}

TEST(Hooks, OutputOfAnAdaptedLayer_HasItsProduct) {
  ParentImpl model(nn::Linear(4, 4).ptr());
  auto& layer = *model.named_children()["layer"]->as<nn::Linear>();
  at::Tensor seen;
  const HookHandle handle =
      add_hooks(model, "layer", {.post_forward = [&](const std::string&, at::Tensor& output) {
                  seen = output.detach().clone();
                }});
  const LoraAdapter adapter = lora(model, {.rank = 2, .target_modules = {"layer"}});
  {
    const torch::NoGradGuard no_grad;
    for (const at::Tensor& parameter : adapter.parameters()) parameter.normal_();
  }
  const at::Tensor x = at::randn({2, 3, 4});
  EXPECT_TRUE(layer.forward(x).equal(seen));
  adapter.merge();
  layer.forward(x);
  const at::Tensor merged = seen;
  adapter.unmerge();
  EXPECT_TRUE(layer.forward(x).allclose(merged, 1e-4, 1e-5));
}

void expect_message(const std::function<void()>& action, const std::vector<std::string>& parts) {
  const std::string message = testing::message_of(action);
  EXPECT_NE(message.find("hint: "), std::string::npos) << message;
  for (const std::string& part : parts)
    EXPECT_NE(message.find(part), std::string::npos) << part << "\n  in: " << message;
}

TEST(Hooks, ChangesThatDoNotFit_NameLayerAndHook) {
  ParentImpl model(nn::Linear(4, 3).ptr());
  auto& layer = *model.named_children()["layer"]->as<nn::Linear>();
  const at::Tensor x = at::randn({2, 4});
  const auto with = [&](const LayerHooks& hooks, const std::vector<std::string>& parts,
                        const at::Tensor& input) {
    const HookHandle handle = add_hooks(model, "layer", hooks);
    expect_message([&] { layer.forward(input).sum().backward(); }, parts);
  };
  const auto cut = [](const std::string&, at::Tensor& tensor) { tensor = tensor.slice(-1, 1); };
  const auto widen = [](const std::string&, at::Tensor& tensor) {
    tensor = tensor.to(torch::kDouble);
  };
  for (const at::Tensor& input : {x, at::randn({2, 2, 4})}) {
    with({.pre_forward = cut},
         {"pre_forward hook of 'layer'", "3] on cpu of Float [2, ", "does not take"}, input);
    with({.pre_forward = widen}, {"pre_forward hook of 'layer'", "Double", "does not take"}, input);
    with({.pre_forward = [](const std::string&, at::Tensor& t) { t.reset(); }},
         {"pre_forward hook of 'layer'", "undefined"}, input);
    with({.post_forward = cut}, {"post_forward hook of 'layer'", "2]"}, input);
    with({.post_forward = widen}, {"post_forward hook of 'layer'", "Double"}, input);
    with({.backward = cut}, {"backward hook of 'layer'"}, input);
  }
  // The layer's own error is the layer's.
  const HookHandle handle =
      add_hooks(model, "layer", {.pre_forward = [](const std::string&, at::Tensor&) {}});
  EXPECT_THROW(layer.forward(at::randn({2, 5})), c10::Error);
  EXPECT_NO_THROW(layer.forward(x));
}

struct RefusedImpl : nn::Module {
  struct OwnImpl : nn::Module {
    OwnImpl() : Module("Own") {}
    at::Tensor weight = register_parameter("weight", at::ones({2}));
  };
  nn::ReLU relu = register_module("relu", nn::ReLU());
  nn::ModuleList list = register_module("list", nn::ModuleList(nn::Linear(2, 2)));
  std::shared_ptr<OwnImpl> own = register_module("own", std::make_shared<OwnImpl>());
  nn::LayerNorm plain =
      register_module("plain", nn::LayerNorm(nn::LayerNormOptions({2}).elementwise_affine(false)));
};

TEST(Hooks, ModulesThatCannotHaveThem_AreRefusedWithTheReason) {
  RefusedImpl model;
  const auto refuse = [&](const std::string& pattern, const std::vector<std::string>& parts) {
    expect_message([&] { const auto handle = add_hooks(model, pattern, {}); }, parts);
  };
  refuse("relu", {"'relu'", "no parameters"});
  refuse("plain", {"'plain'", "no parameters"});
  refuse("list", {"'list'", "consists of other modules"});
  refuse("own", {"'own'", "not known", "Conv2d"});
  refuse("missing.*", {"'missing.*' matches no module", "relu"});
  EXPECT_EQ(add_hooks(model, "list.*", {}).layers(), Names{"list.0"});
}

}  // namespace
}  // namespace coupler

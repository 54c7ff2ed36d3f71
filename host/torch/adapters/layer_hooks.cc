// The public functions of coupler/hooks.h.
#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <coupler/error.h>
#include <coupler/hooks.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <memory>
#include <regex>
#include <string_view>
#include <utility>

#include "adapters/lora_layer.h"
#include "base/error.h"
#include "base/name_pattern.h"
#include "base/text.h"
#include "placement/module_tree.h"
#include "residency/parameter_hooks.h"
#include "residency/product.h"
#include "tensors/tensor_text.h"

namespace coupler {
namespace {

// How LibTorch's modules of a class compute.
struct LayerKind {
  std::string_view type;       // without namespace
  std::string_view operation;  // empty: a product
  size_t input = 0;            // which argument
};

constexpr std::array kLayerKinds = {
    LayerKind{"Linear", ""},
    LayerKind{"Conv1d", "aten::conv1d"},
    LayerKind{"Conv2d", "aten::conv2d"},
    LayerKind{"Conv3d", "aten::conv3d"},
    LayerKind{"ConvTranspose1d", "aten::conv_transpose1d"},
    LayerKind{"ConvTranspose2d", "aten::conv_transpose2d"},
    LayerKind{"ConvTranspose3d", "aten::conv_transpose3d"},
    LayerKind{"Embedding", "aten::embedding", 1},
    LayerKind{"LayerNorm", "aten::layer_norm"},
    LayerKind{"GroupNorm", "aten::group_norm"},
    LayerKind{"BatchNorm1d", "aten::batch_norm"},
    LayerKind{"BatchNorm2d", "aten::batch_norm"},
    LayerKind{"BatchNorm3d", "aten::batch_norm"},
    LayerKind{"InstanceNorm1d", "aten::instance_norm"},
    LayerKind{"InstanceNorm2d", "aten::instance_norm"},
    LayerKind{"InstanceNorm3d", "aten::instance_norm"},
    LayerKind{"PReLU", "aten::prelu"},
};

bool same_form(const at::Tensor& a, const at::Tensor& b) {
  return b.defined() && a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
         a.device() == b.device();
}

[[noreturn]] void refuse_change(const std::string& layer, const char* hook,
                                const at::Tensor& before, const at::Tensor& after,
                                const std::string& why) {
  throw Error(ErrorCode::kUsage,
              fmt::format("the {} hook of '{}' made {} of {}{}", hook, layer,
                          tensors::text_with_device(after), tensors::text_with_device(before), why),
              {.subject = layer, .hint = "return a tensor of the same shape, dtype and device"});
}

}  // namespace

// The hooks of one layer that one call added.
class adapters::LayerHook : public residency::ParameterHook {
 public:
  LayerHook(std::string name, const LayerKind& kind, const torch::nn::Module& module,
            const LayerHooks& hooks)
      : ParameterHook(residency::HookPlace::kModule),
        kind_(kind),
        calls_(std::make_shared<Calls>(Calls{std::move(name), hooks})) {
    const auto own = module.named_parameters(/*recurse=*/false);
    weight_ = own["weight"];
    if (const at::Tensor* const bias = own.find("bias")) bias_ = *bias;
  }

  const std::string& name() const { return calls_->name; }
  // The layer's own parameters, whose operations this sees.
  std::vector<at::Tensor> parameters() const {
    std::vector<at::Tensor> result{weight_};
    if (bias_.defined()) result.push_back(bias_);
    return result;
  }

  void around(const c10::OperatorHandle& op, torch::jit::Stack& stack,
              const std::function<void()>& run) override {
    if (is_layers(op, stack)) return run_layer(op, stack, run);
    if (const auto layers = layers_that_get_bias(op, stack); !layers.empty()) {
      add_bias(layers, stack, run);
    } else {
      run();
    }
  }

 private:
  // A layer's name and one call's hooks. Shared: they may outlive this in autograd's graph.
  struct Calls {
    std::string name;
    LayerHooks hooks;
  };
  using SharedCalls = std::shared_ptr<const Calls>;
  using Layers = std::vector<SharedCalls>;  // from the inside to the outside

  // A product whose bias is added by the next operation on this thread.
  struct Unfinished {
    Layers layers;
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> product{
        c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>()};
  };
  static Unfinished& unfinished() {
    static thread_local Unfinished product;
    return product;
  }

  bool is_layers(const c10::OperatorHandle& op, const torch::jit::Stack& stack) const;
  void run_layer(const c10::OperatorHandle& op, torch::jit::Stack& stack,
                 const std::function<void()>& run) const;
  void wait_for_bias(const at::Tensor& product) const;
  Layers layers_that_get_bias(const c10::OperatorHandle& op, const torch::jit::Stack& stack) const;
  static void add_bias(const Layers& layers, torch::jit::Stack& stack,
                       const std::function<void()>& run);
  static at::Tensor after_forward(const SharedCalls& calls, const at::Tensor& output);

  const LayerKind& kind_;
  const SharedCalls calls_;
  at::Tensor weight_, bias_;
};

bool adapters::LayerHook::is_layers(const c10::OperatorHandle& op,
                                    const torch::jit::Stack& stack) const {
  if (!kind_.operation.empty()) return op.schema().name() == kind_.operation;
  const auto product = residency::product_of(op, stack);
  if (!product) return false;
  const auto expected =
      product->out_in ? residency::MatrixView::kStored : residency::MatrixView::kTransposed;
  return residency::view_of(product->matrix, weight_) == expected;
}

void adapters::LayerHook::run_layer(const c10::OperatorHandle& op, torch::jit::Stack& stack,
                                    const std::function<void()>& run) const {
  const bool addmm = op.schema().name() == "aten::addmm";
  c10::IValue& input =
      stack[stack.size() - op.schema().arguments().size() + (addmm ? 1 : kind_.input)];
  const at::Tensor before = input.toTensor();
  at::Tensor given = before;
  if (calls_->hooks.pre_forward) {
    calls_->hooks.pre_forward(name(), given);
    if (!given.defined()) refuse_change(name(), "pre_forward", before, given, "");
    input = given;
  }
  const bool with_bias =
      kind_.operation.empty() && bias_.defined() && op.schema().name() != "aten::linear" && !addmm;
  try {
    run();
  } catch (const c10::Error& error) {
    if (same_form(before, given)) throw;
    const std::string_view what = error.what_without_backtrace();
    refuse_change(name(), "pre_forward", before, given,
                  fmt::format(", which {} does not take: {}", op.schema().name(),
                              what.substr(0, what.find('\n'))));
  }
  const at::Tensor output = stack.back().toTensor();
  if (with_bias) {
    wait_for_bias(output);
  } else {
    stack.back() = after_forward(calls_, output);
  }
}

// LibTorch's Linear adds its bias in place if the input has more than two dimensions. The hooks of
// one layer come here from the inside to the outside, with the same product.
void adapters::LayerHook::wait_for_bias(const at::Tensor& product) const {
  Unfinished& last = unfinished();
  if (last.product.lock().get() != product.unsafeGetTensorImpl())
    last = {{}, decltype(Unfinished::product)(product.getIntrusivePtr())};
  last.layers.push_back(calls_);
}

// The layers whose product this operation adds the bias to.
adapters::LayerHook::Layers adapters::LayerHook::layers_that_get_bias(
    const c10::OperatorHandle& op, const torch::jit::Stack& stack) const {
  Unfinished& last = unfinished();
  if (last.layers.empty() || op.schema().name() != "aten::add_" ||
      op.schema().overload_name() != "Tensor")
    return {};
  const c10::IValue& sum = stack[stack.size() - op.schema().arguments().size()];
  const auto product = last.product.lock();
  if (!sum.isTensor() || sum.toTensor().unsafeGetTensorImpl() != product.get()) return {};
  return std::exchange(last, {}).layers;
}

// The program goes on with the product's own tensor, so what hooks return is written there.
void adapters::LayerHook::add_bias(const Layers& layers, torch::jit::Stack& stack,
                                   const std::function<void()>& run) {
  const bool changes = std::any_of(layers.begin(), layers.end(), [](const SharedCalls& calls) {
    return static_cast<bool>(calls->hooks.post_forward);
  });
  if (!changes) {
    run();
    for (const SharedCalls& calls : layers) after_forward(calls, stack.back().toTensor());
    return;
  }
  const at::Scalar factor = stack.back().toScalar();
  const at::Tensor bias = stack[stack.size() - 2].toTensor();
  const at::Tensor product = stack[stack.size() - 3].toTensor();
  at::Tensor output = at::add(product, bias, factor).to(product.scalar_type());
  for (const SharedCalls& calls : layers) output = after_forward(calls, output);
  product.copy_(output);
  torch::jit::drop(stack, 3);
  torch::jit::push(stack, product);
}

at::Tensor adapters::LayerHook::after_forward(const SharedCalls& calls, const at::Tensor& output) {
  at::Tensor result = output;
  if (calls->hooks.post_forward) {
    calls->hooks.post_forward(calls->name, result);
    if (!same_form(output, result)) refuse_change(calls->name, "post_forward", output, result, "");
  }
  if (!calls->hooks.backward || !result.requires_grad()) return result;
  result.register_hook([calls](const at::Tensor& gradient) {
    at::Tensor changed = gradient;
    calls->hooks.backward(calls->name, changed);
    if (!same_form(gradient, changed))
      refuse_change(calls->name, "backward", gradient, changed, "");
    return changed;
  });
  return result;
}

namespace {

std::string kinds_with_hooks() {
  std::vector<std::string_view> names;
  for (const LayerKind& kind : kLayerKinds) names.push_back(kind.type);
  return fmt::format("{}", fmt::join(names, ", "));
}

[[noreturn]] void refuse_module(const std::string& name, const torch::nn::Module& module) {
  const bool container = !module.children().empty();
  const bool empty = module.parameters().empty();
  const char* const why =
      container ? "it consists of other modules, and only operations on parameters are intercepted"
      : empty   ? "it has no parameters, and only operations on parameters are intercepted"
                : "its operations are not known";
  fail_argument(
      fmt::format("add_hooks: '{}', a {}, cannot have hooks: {}", name, module.name(), why), name,
      fmt::format("name layers of these classes: {}; or call your code in its forward",
                  kinds_with_hooks()));
}

// A subclass computes in its own way.
const LayerKind& kind_of(const std::string& name, const torch::nn::Module& module) {
  const auto found =
      std::find_if(kLayerKinds.begin(), kLayerKinds.end(), [&](const LayerKind& kind) {
        return placement::names_class({fmt::format("torch::nn::{}", kind.type)}, module.name());
      });
  if (found == kLayerKinds.end() || module.named_parameters(false).find("weight") == nullptr)
    refuse_module(name, module);
  return *found;
}

}  // namespace

std::vector<std::string> HookHandle::layers() const {
  std::vector<std::string> result;
  for (const auto& hook : hooks_) result.push_back(hook->name());
  return result;
}

HookHandle add_hooks(torch::nn::Module& model, const std::string& pattern,
                     const LayerHooks& hooks) {
  const std::regex regex = name_pattern(pattern);
  std::vector<std::shared_ptr<adapters::LayerHook>> result;
  std::vector<std::string> names;
  for (const auto& item : model.named_modules("", /*include_self=*/false)) {
    names.push_back(item.key());
    if (!std::regex_match(item.key(), regex)) continue;
    if (dynamic_cast<const adapters::LoraMatrix*>(item.value().get()) != nullptr) continue;
    result.push_back(std::make_shared<adapters::LayerHook>(
        item.key(), kind_of(item.key(), *item.value()), *item.value(), hooks));
  }
  if (result.empty()) {
    constexpr size_t kShown = 8;
    const size_t shown = std::min(names.size(), kShown);
    fail_argument(fmt::format("add_hooks: '{}' matches no module of '{}'", for_message(pattern),
                              model.name()),
                  "pattern",
                  fmt::format("its modules are {}{}",
                              fmt::join(names.begin(),
                                        names.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
                              shown < names.size() ? ", …" : ""));
  }
  for (const auto& hook : result) {
    for (const at::Tensor& parameter : hook->parameters()) residency::add_hook(parameter, hook);
  }
  return HookHandle(std::move(result));
}

}  // namespace coupler

// The public functions of coupler/hooks.h.
#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <coupler/error.h>
#include <coupler/hooks.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <regex>
#include <string_view>

#include "adapters/lora_layer.h"
#include "base/error.h"
#include "base/name_pattern.h"
#include "base/text.h"
#include "placement/module_tree.h"
#include "residency/parameter_hooks.h"
#include "residency/product.h"

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

std::string form_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return "an undefined tensor";
  return fmt::format("{} of [{}]", c10::toString(tensor.scalar_type()),
                     fmt::join(tensor.sizes(), ", "));
}

bool same_form(const at::Tensor& a, const at::Tensor& b) {
  return b.defined() && a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
         a.device() == b.device();
}

[[noreturn]] void refuse_change(const std::string& layer, const char* hook,
                                const at::Tensor& before, const at::Tensor& after,
                                const std::string& why) {
  throw Error(ErrorCode::kUsage,
              fmt::format("the {} hook of '{}' made {} of {}{}", hook, layer, form_of(after),
                          form_of(before), why),
              {.subject = layer, .hint = "return a tensor of the same shape, dtype and device"});
}

}  // namespace

// The hooks of one layer that one call added.
class adapters::LayerHook : public residency::ParameterHook {
 public:
  LayerHook(std::string name, const LayerKind& kind, const torch::nn::Module& module,
            const LayerHooks& hooks)
      : ParameterHook(residency::HookPlace::kModule),
        name_(std::move(name)),
        kind_(kind),
        hooks_(std::make_shared<LayerHooks>(hooks)) {
    const auto own = module.named_parameters(/*recurse=*/false);
    weight_ = own["weight"];
    if (const at::Tensor* const bias = own.find("bias")) bias_ = *bias;
  }

  const std::string& name() const { return name_; }
  // The layer's own parameters, whose operations this sees.
  std::vector<at::Tensor> parameters() const {
    std::vector<at::Tensor> result{weight_};
    if (bias_.defined()) result.push_back(bias_);
    return result;
  }

  void around(const c10::OperatorHandle& op, torch::jit::Stack& stack,
              const std::function<void()>& run) override {
    if (is_layers(op, stack)) return run_layer(op, stack, run);
    const at::Tensor product = product_that_gets_bias(op, stack);
    product.defined() ? add_bias(product, stack, run) : run();
  }

 private:
  // A product whose bias is added by the next operation on this thread.
  struct Unfinished {
    const LayerHook* layer = nullptr;
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
  at::Tensor product_that_gets_bias(const c10::OperatorHandle& op,
                                    const torch::jit::Stack& stack) const;
  void add_bias(const at::Tensor& product, torch::jit::Stack& stack,
                const std::function<void()>& run) const;
  at::Tensor after_forward(const at::Tensor& output) const;
  void watch_gradient(const at::Tensor& output) const;

  const std::string name_;
  const LayerKind& kind_;
  const std::shared_ptr<const LayerHooks> hooks_;  // also of nodes of autograd's graph
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
  if (hooks_->pre_forward) {
    hooks_->pre_forward(name_, given);
    if (!given.defined()) refuse_change(name_, "pre_forward", before, given, "");
    input = given;
  }
  const bool with_bias =
      kind_.operation.empty() && bias_.defined() && op.schema().name() != "aten::linear" && !addmm;
  try {
    run();
  } catch (const c10::Error& error) {
    if (same_form(before, given)) throw;
    const std::string_view what = error.what_without_backtrace();
    refuse_change(name_, "pre_forward", before, given,
                  fmt::format(", which {} does not take: {}", op.schema().name(),
                              what.substr(0, what.find('\n'))));
  }
  at::Tensor output = stack.back().toTensor();
  if (with_bias) {
    unfinished() = {this, decltype(Unfinished::product)(output.getIntrusivePtr())};
    return;
  }
  output = after_forward(output);
  watch_gradient(output);
  stack.back() = output;
}

// LibTorch's Linear adds its bias in place if the input has more than two dimensions.
at::Tensor adapters::LayerHook::product_that_gets_bias(const c10::OperatorHandle& op,
                                                       const torch::jit::Stack& stack) const {
  Unfinished& last = unfinished();
  if (last.layer != this || op.schema().name() != "aten::add_" ||
      op.schema().overload_name() != "Tensor")
    return {};
  const c10::IValue& sum = stack[stack.size() - op.schema().arguments().size()];
  const auto product = last.product.lock();
  if (!sum.isTensor() || sum.toTensor().unsafeGetTensorImpl() != product.get()) return {};
  last = {};
  return sum.toTensor();
}

// The program goes on with the product's own tensor, so what a hook returns is written there.
void adapters::LayerHook::add_bias(const at::Tensor& product, torch::jit::Stack& stack,
                                   const std::function<void()>& run) const {
  if (hooks_->post_forward) {
    const at::Scalar factor = stack.back().toScalar();
    const at::Tensor bias = stack[stack.size() - 2].toTensor();
    const at::Tensor output = at::add(product, bias, factor).to(product.scalar_type());
    product.copy_(after_forward(output));
    torch::jit::drop(stack, 3);
    torch::jit::push(stack, product);
  } else {
    run();
  }
  watch_gradient(product);
}

at::Tensor adapters::LayerHook::after_forward(const at::Tensor& output) const {
  at::Tensor result = output;
  if (!hooks_->post_forward) return result;
  hooks_->post_forward(name_, result);
  if (!same_form(output, result)) refuse_change(name_, "post_forward", output, result, "");
  return result;
}

void adapters::LayerHook::watch_gradient(const at::Tensor& output) const {
  if (!hooks_->backward || !output.requires_grad()) return;
  output.register_hook([hooks = hooks_, name = name_](const at::Tensor& gradient) {
    at::Tensor changed = gradient;
    hooks->backward(name, changed);
    if (!same_form(gradient, changed)) refuse_change(name, "backward", gradient, changed, "");
    return changed;
  });
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

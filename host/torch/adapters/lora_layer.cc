#include "adapters/lora_layer.h"

#include <ATen/Functions.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "residency/product.h"
#include "tensors/divided_values.h"

namespace coupler::adapters {
namespace {

// Adds the product to the result of every product of an input with the layer's weight.
class LowRankHook : public residency::ParameterHook {
 public:
  // module: whose training mode decides on dropout; owns this.
  LowRankHook(const LoraLayer& layer, double dropout, std::shared_ptr<const LoraSwitch> adapter)
      : ParameterHook(residency::HookPlace::kResult),
        weight_(layer.target.weight),
        a_(layer.a->weight),
        b_(layer.b->weight),
        transposed_(layer.target.transposed),
        scaling_(layer.scaling),
        dropout_(dropout),
        features_(layer.a->weight.size(1)),
        module_(*layer.a),
        used_(layer.used),
        adapter_(std::move(adapter)) {}

  void around(const c10::OperatorHandle& op, torch::jit::Stack& stack,
              const std::function<void()>& run) override {
    std::optional<at::Tensor> input = input_of(op, stack);
    if (input) input = dropped(std::move(*input));
    run();
    if (input && stack.back().isTensor()) stack.back() = added(*input, stack.back().toTensor());
  }

 private:
  // Of a product with the layer's matrix. Backward multiplies by the same weight, turned around,
  // and its own backward by the weight as forward does.
  std::optional<at::Tensor> input_of(const c10::OperatorHandle& op,
                                     const torch::jit::Stack& stack) const {
    if (!adapter_->adds() || residency::in_backward()) return std::nullopt;
    const std::optional<residency::Product> product = residency::product_of(op, stack);
    if (!product) return std::nullopt;
    const auto expected = product->out_in != transposed_ ? residency::MatrixView::kStored
                                                         : residency::MatrixView::kTransposed;
    if (residency::view_of(product->matrix, weight_) != expected) return std::nullopt;
    return product->x;
  }

  // Before the layer's product, at which a rank's part of the values may end.
  at::Tensor dropped(at::Tensor x) const {
    // Autocast converts by itself, to the type that it computes in.
    if (!residency::is_autocast_on(x.device().type())) x = x.to(a_.scalar_type());
    if (dropout_ == 0 || !module_.is_training()) return x;
    // A whole input may have as many features as what another layer has made.
    std::optional<tensors::OwnDraws> own;
    if (x.size(-1) != features_ && tensors::divided_values() != nullptr) own.emplace(x.device());
    const tensors::DividedValuesScope whole(nullptr);
    return at::dropout(x, dropout_, /*train=*/true);
  }

  at::Tensor added(const at::Tensor& x, const at::Tensor& result) const {
    used_->store(true, std::memory_order_relaxed);
    const at::Tensor product = at::linear(at::linear(x, a_), b_);
    // A view of an internal result may not be written to.
    return result.is_view() ? result.add(product, scaling_).to(result.scalar_type())
                            : result.add_(product, scaling_);
  }

  const at::Tensor weight_, a_, b_;
  const bool transposed_;
  const double scaling_, dropout_;
  const int64_t features_;  // of whole inputs: a rowwise layer gets a part of them
  const torch::nn::Module& module_;
  const std::shared_ptr<std::atomic<bool>> used_;
  const std::shared_ptr<const LoraSwitch> adapter_;
};

}  // namespace

LoraMatrix::LoraMatrix(at::Tensor value, bool trainable) : Module("LoraMatrix") {
  weight = register_parameter("weight", std::move(value), trainable);
}

at::Tensor LoraLayer::product() const {
  const at::Tensor result = at::mm(b->weight, a->weight).mul(scaling);
  return target.transposed ? result.t() : result;
}

LoraLayer attach(TargetLayer target, at::Tensor a, at::Tensor b, double scaling, double dropout,
                 bool trainable, std::shared_ptr<const LoraSwitch> adapter) {
  LoraLayer layer{.target = std::move(target),
                  .a = std::make_shared<LoraMatrix>(std::move(a), trainable),
                  .b = std::make_shared<LoraMatrix>(std::move(b), trainable),
                  .used = std::make_shared<std::atomic<bool>>(false),
                  .scaling = scaling};
  torch::nn::Module& module = *layer.target.module;
  for (const auto& matrix : {layer.a, layer.b}) matrix->train(module.is_training());
  layer.a->hook = std::make_shared<LowRankHook>(layer, dropout, std::move(adapter));
  residency::add_hook(layer.target.weight, layer.a->hook);
  module.register_module("lora_A", layer.a);
  module.register_module("lora_B", layer.b);
  return layer;
}

void detach(const LoraLayer& layer) {
  layer.target.module->unregister_module("lora_A");
  layer.target.module->unregister_module("lora_B");
  layer.a->hook.reset();
}

}  // namespace coupler::adapters

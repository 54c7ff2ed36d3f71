// LoRA: trains a low-rank product next to frozen linear layers of an unmodified model, as PEFT does
// in Python: y = x Wᵀ + scaling · B(A(dropout(x))), with A [rank, in] and B [out, rank].
//
//   auto adapter = coupler::lora(*model, {.rank = 8, .alpha = 16,
//                                         .target_modules = {"q_proj", "v_proj"}});
//   torch::optim::AdamW optimizer(adapter.parameters(), 1e-4);
//   auto [net, opt, batches] = accelerator.prepare(model, optimizer, loader);
//   …
//   adapter.save_pretrained("my-adapter");  // PEFT reads it
//
// Modules are not changed, and their forward is not replaced: an operation that multiplies by a
// targeted weight is noticed wherever it comes from (Linear::forward, torch::linear, a custom
// module), and the product is added to its result. A and B are parameters of two submodules of the
// layer, "lora_A" and "lora_B", so that prepare, checkpoints, Module::to and train() treat them
// like any others. The base may be quantized (coupler/quantize.h): QLoRA.
//
// Functions here are called by the thread that owns the model, not while it computes. Errors are
// coupler::Error and name the layer or file; a call that throws leaves the model as it was.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace coupler {

namespace adapters {
struct LoraState;
}

// For coupler::lora. In brackets: the name in PEFT's LoraConfig; defaults are PEFT's.
struct LoraOptions {
  int64_t rank = 8;  // [r] of the products; at most the smaller side of every targeted weight
  // [lora_alpha] The products are multiplied by alpha / rank, or, with rslora [use_rslora], by
  // alpha / sqrt(rank).
  double alpha = 8;
  bool rslora = false;
  double dropout =
      0;  // [lora_dropout] of the products' input, in training mode; at least 0, below 1
  // [target_modules] The layers: dotted names, or their ends ("q_proj", "self_attn.q_proj"); or
  // only "all-linear". Each must match a module, and every module that it matches must be linear.
  std::vector<std::string> target_modules;
  // Instead of target_modules: a regular expression (ECMAScript) that must match the whole name.
  std::string target_pattern;
  // [exclude_modules] Layers that are left out although they match, in the same way.
  std::vector<std::string> exclude_modules;
  // The program's own classes whose parameter "weight" is a linear layer's: [out, in] like
  // torch::nn::Linear's, and [in, out] as in GPT-2. As in QuantizeOptions; of coupler's models:
  // "Head" and "Conv1D".
  std::vector<std::string> linear_classes;
  std::vector<std::string> transposed_classes;
};

// The low-rank products that one call added to a model. Copies refer to the same ones. The products
// live as long as the model, also without this object. Used by the thread that owns the model.
class LoraAdapter {
 public:
  // Made by coupler::lora and coupler::load_lora.
  explicit LoraAdapter(std::shared_ptr<adapters::LoraState> state) : state_(std::move(state)) {}

  // A and B of each layer in turn, for the optimizer.
  std::vector<at::Tensor> parameters() const;
  // The dotted names of the layers, in order of registration.
  std::vector<std::string> layers() const;

  // Whether products are added; true at first. False: the model computes as without them [PEFT's
  // disable_adapter].
  void set_enabled(bool enabled) const;

  // Adds scaling · B A to each base weight, which then needs no further operation, and takes it
  // away again, up to rounding. Under a backend that shards parameters, call them on every rank
  // inside coupler::summon_full_parameters(net). Throws Error(kUnsupported) for a quantized base.
  // They have no effect on a model that already is in that state.
  void merge() const;
  void unmerge() const;
  bool merged() const;

  // Removes the products from the model, which computes as without them; after merge(), with them
  // in its weights. Call it when the model is not prepared, or not used as such any more. This
  // object is empty afterwards.
  void remove() const;
  void merge_and_unload() const {
    merge();
    remove();
  }

  // Writes adapter_config.json and adapter_model.safetensors, with PEFT's names, into a folder,
  // which is created if it is missing. The main process writes; with a prepared model every rank
  // must call it, since a backend that shards, or a tensor group, gathers A and B. base: the base
  // model's name, for readers. Existing files are replaced when the new ones are complete. Throws
  // Error(kIo) on the main process.
  void save_pretrained(const std::string& folder, const std::string& base = "") const;

 private:
  std::shared_ptr<adapters::LoraState> state_;
};

// Freezes the model (requires_grad of every parameter is turned off, except of earlier adapters'),
// and adds products to the targeted layers. A is drawn from kaiming_uniform with the default
// generator and B is 0, so that the model computes as before. Both have the weight's device and
// dtype, but float for weights of fewer than 32 bits. Call it before prepare, on a model that has
// values or is on meta.
//
// Throws Error(kInvalidArgument) naming what is wrong: a target that matches no module (with those
// there are), a module that is not a linear layer (embeddings and convolutions are not supported),
// a weight shared with another module, a rank that is too large, a layer that already has a
// product.
LoraAdapter lora(torch::nn::Module& model, const LoraOptions& options);

// For coupler::load_lora.
struct LoadLoraOptions {
  bool trainable = false;  // whether A and B require gradients, to train on
  // As in LoraOptions.
  std::vector<std::string> linear_classes;
  std::vector<std::string> transposed_classes;
};

// Adds the products of a folder that save_pretrained or PEFT has written. Freezes the model.
// Throws Error(kIo) for missing or damaged files, Error(kInvalidArgument) naming the layer if the
// adapter belongs to another model (layers that are missing or have other sizes), and
// Error(kUnsupported) naming the key for what changes the computation in other ways (DoRA, trained
// biases, modules_to_save, alpha_pattern).
LoraAdapter load_lora(torch::nn::Module& model, const std::string& folder,
                      const LoadLoraOptions& options = {});

// The same for module holders.
template <class Holder>
auto lora(Holder& model, const LoraOptions& options) -> decltype(lora(*model, options)) {
  return lora(*model, options);
}
template <class Holder>
auto load_lora(Holder& model, const std::string& folder, const LoadLoraOptions& options = {})
    -> decltype(load_lora(*model, folder, options)) {
  return load_lora(*model, folder, options);
}

}  // namespace coupler

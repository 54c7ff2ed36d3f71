// The public functions of coupler/lora.h.
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <coupler/lora.h>
#include <coupler/processes.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/init.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "adapters/lora_files.h"
#include "adapters/lora_layer.h"
#include "adapters/target_layers.h"
#include "base/error.h"
#include "base/log.h"
#include "residency/intercept.h"
#include "tensor_parallel/divided_parameter.h"

namespace coupler {

// What copies of a LoraAdapter share.
struct adapters::LoraState {
  AdapterConfig config;
  std::vector<LoraLayer> layers;
  std::shared_ptr<LoraSwitch> adapter = std::make_shared<LoraSwitch>();
};

namespace {

using adapters::AdapterConfig;
using adapters::AdapterWeights;
using adapters::LoraLayer;
using adapters::TargetLayer;

// Of A and B; at least float, as PEFT's autocast_adapter_dtype.
at::TensorOptions options_for(const at::Tensor& weight) {
  const bool narrow = c10::elementSize(weight.scalar_type()) < sizeof(float);
  const c10::Device device = weight.is_meta() ? c10::Device(c10::kCPU) : weight.device();
  return at::TensorOptions(narrow ? at::kFloat : weight.scalar_type()).device(device);
}

double scaling_of(const AdapterConfig& config, int64_t rank) {
  const auto size = static_cast<double>(rank);
  return config.alpha / (config.rslora ? std::sqrt(size) : size);
}

void check_numbers(const LoraOptions& options) {
  const auto refuse = [](const char* name, double value, const char* rule, const char* usual) {
    fail_argument(fmt::format("LoRA: {} is {}, but must be {}", name, value, rule), name, usual);
  };
  if (options.rank < 1)
    refuse("rank", static_cast<double>(options.rank), "at least 1", "use a small number such as 8");
  if (!std::isfinite(options.alpha))
    refuse("alpha", options.alpha, "finite", "use the rank, or twice as much");
  if (!(options.dropout >= 0 && options.dropout < 1))
    refuse("dropout", options.dropout, "at least 0 and below 1", "use 0, or little, such as 0.05");
}

void check_rank(const TargetLayer& layer, int64_t rank) {
  if (rank <= std::min(layer.in(), layer.out())) return;
  fail_argument(
      fmt::format("LoRA: rank {} is too large for '{}', whose weight is {} x {}: the product would "
                  "be no smaller than the weight",
                  rank, layer.name, layer.out(), layer.in()),
      layer.name,
      fmt::format("use at most {}, or leave the layer out", std::min(layer.in(), layer.out())));
}

// All but earlier adapters' A and B.
void freeze(const torch::nn::Module& module) {
  if (dynamic_cast<const adapters::LoraMatrix*>(&module) != nullptr) return;
  for (at::Tensor& parameter : module.parameters(/*recurse=*/false))
    parameter.set_requires_grad(false);
  for (const auto& child : module.children()) freeze(*child);
}

// Nothing here fails, so that a model is changed as a whole.
LoraAdapter attach_all(torch::nn::Module& model, std::vector<TargetLayer> targets,
                       std::vector<AdapterWeights> weights,
                       std::shared_ptr<adapters::LoraState> state, bool trainable) {
  freeze(model);
  for (size_t i = 0; i < targets.size(); ++i) {
    const double scaling = scaling_of(state->config, weights[i].a.size(0));
    state->layers.push_back(attach(std::move(targets[i]), std::move(weights[i].a),
                                   std::move(weights[i].b), scaling, state->config.dropout,
                                   trainable, state->adapter));
  }
  return LoraAdapter(std::move(state));
}

// A weight of which a merge would also change something else, or nothing.
void require_mergeable(const LoraLayer& layer) {
  const auto* const managed = residency::managed_storage_of(layer.target.weight);
  if (managed == nullptr || !managed->unit->placed) return;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("merge: '{}.weight' is quantized or placed by a device map, and cannot "
                          "be written to",
                          layer.target.name),
              {.subject = layer.target.name,
               .hint = "load the base model in full precision, load the adapter with load_lora, "
                       "merge, and quantize the result"});
}

// All or none.
void add_products(const std::vector<LoraLayer>& layers, double factor) {
  for (const LoraLayer& layer : layers) require_mergeable(layer);
  const at::NoGradGuard no_grad;
  size_t done = 0;
  try {
    for (; done < layers.size(); ++done)
      layers[done].target.weight.add_(layers[done].product(), factor);
  } catch (...) {
    for (size_t i = 0; i < done; ++i) layers[i].target.weight.sub_(layers[i].product(), factor);
    throw;
  }
}

}  // namespace

LoraAdapter lora(torch::nn::Module& model, const LoraOptions& options) {
  check_numbers(options);
  std::vector<TargetLayer> targets =
      adapters::target_layers(model, {.modules = options.target_modules,
                                      .pattern = options.target_pattern,
                                      .exclude = options.exclude_modules,
                                      .linear_classes = options.linear_classes,
                                      .transposed_classes = options.transposed_classes});
  for (const TargetLayer& target : targets) check_rank(target, options.rank);
  auto state = std::make_shared<adapters::LoraState>();
  state->config = {.rank = options.rank,
                   .alpha = options.alpha,
                   .rslora = options.rslora,
                   .dropout = options.dropout,
                   .transposed = targets[0].transposed,
                   .target_modules = options.target_modules,
                   .exclude_modules = options.exclude_modules,
                   .target_pattern = options.target_pattern,
                   .rank_pattern = {},
                   .base = {}};
  // PEFT expands it, too.
  if (options.target_modules == std::vector<std::string>{"all-linear"}) {
    state->config.target_modules.clear();
    for (const TargetLayer& target : targets) state->config.target_modules.push_back(target.name);
  }
  const at::NoGradGuard no_grad;
  std::vector<AdapterWeights> weights;
  for (const TargetLayer& target : targets) {
    const at::TensorOptions form = options_for(target.weight);
    weights.push_back({.a = at::empty({options.rank, target.in()}, form),
                       .b = at::zeros({target.out(), options.rank}, form)});
    torch::nn::init::kaiming_uniform_(weights.back().a, std::sqrt(5.0));
  }
  return attach_all(model, std::move(targets), std::move(weights), std::move(state),
                    /*trainable=*/true);
}

LoraAdapter load_lora(torch::nn::Module& model, const std::string& folder,
                      const LoadLoraOptions& options) {
  adapters::AdapterFiles files = adapters::read_adapter(folder);
  std::vector<std::string> names;
  for (const auto& [name, weights] : files.layers) names.push_back(name);
  std::vector<TargetLayer> targets =
      adapters::layers_named(model, names,
                             {.modules = {},
                              .pattern = {},
                              .exclude = {},
                              .linear_classes = options.linear_classes,
                              .transposed_classes = options.transposed_classes},
                             folder);
  for (const TargetLayer& target : targets) {
    const AdapterWeights& weights = files.layers.at(target.name);
    if (weights.a.size(1) == target.in() && weights.b.size(0) == target.out()) continue;
    fail_argument(
        fmt::format("{} was made for another model: for '{}', A is [{}] and B is [{}], but the "
                    "layer has {} inputs and {} outputs",
                    folder, target.name, fmt::join(weights.a.sizes(), ", "),
                    fmt::join(weights.b.sizes(), ", "), target.in(), target.out()),
        target.name, "use it with the model that it was trained with");
  }
  auto state = std::make_shared<adapters::LoraState>();
  state->config = std::move(files.config);
  const at::NoGradGuard no_grad;
  std::vector<AdapterWeights> weights;
  for (const TargetLayer& target : targets) {
    const at::TensorOptions form = options_for(target.weight);
    const AdapterWeights& read = files.layers.at(target.name);
    // Copies: the file may be replaced.
    weights.push_back({.a = at::empty(read.a.sizes(), form).copy_(read.a),
                       .b = at::empty(read.b.sizes(), form).copy_(read.b)});
  }
  return attach_all(model, std::move(targets), std::move(weights), std::move(state),
                    options.trainable);
}

std::vector<at::Tensor> LoraAdapter::parameters() const {
  std::vector<at::Tensor> result;
  for (const LoraLayer& layer : state_->layers) {
    result.push_back(layer.a->weight);
    result.push_back(layer.b->weight);
  }
  return result;
}

std::vector<std::string> LoraAdapter::layers() const {
  std::vector<std::string> result;
  for (const LoraLayer& layer : state_->layers) result.push_back(layer.target.name);
  return result;
}

void LoraAdapter::set_enabled(bool enabled) const { state_->adapter->enabled.store(enabled); }

bool LoraAdapter::merged() const { return state_->adapter->merged.load(); }

void LoraAdapter::merge() const {
  if (merged()) return;
  add_products(state_->layers, 1);
  state_->adapter->merged.store(true);
}

void LoraAdapter::unmerge() const {
  if (!merged()) return;
  add_products(state_->layers, -1);
  state_->adapter->merged.store(false);
}

void LoraAdapter::remove() const {
  for (const LoraLayer& layer : state_->layers) detach(layer);
  state_->layers.clear();
}

void LoraAdapter::save_pretrained(const std::string& folder, const std::string& base) const {
  const at::NoGradGuard no_grad;
  adapters::AdapterFiles files{.config = state_->config, .layers = {}};
  if (!base.empty()) files.config.base = base;
  std::vector<std::string> unused;
  for (const LoraLayer& layer : state_->layers) {
    if (layer.a->weight.is_meta()) {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("save_pretrained: the product of '{}' is on another pipeline stage",
                              layer.target.name),
                  {.subject = layer.target.name,
                   .hint = "save the whole model with accelerator.save_model"});
    }
    // Gathers them from their owners, on every rank in the same order.
    files.layers[layer.target.name] = {tensor_parallel::whole_value(layer.a->weight).cpu(),
                                       tensor_parallel::whole_value(layer.b->weight).cpu()};
    if (!layer.used->load()) unused.push_back(layer.target.name);
  }
  if (!PartialState().is_main_process()) return;
  // If none was used, the program only merges or converts.
  if (!unused.empty() && unused.size() < state_->layers.size()) {
    log(LogLevel::kWarning, "lora",
        fmt::format("'{}'{} was not used: the model has not multiplied by its weight in a way that "
                    "LoRA recognizes (linear, matmul, mm, addmm), so its product is as at first",
                    unused[0],
                    unused.size() == 1 ? "" : fmt::format(" (and {} more)", unused.size() - 1)));
  }
  adapters::write_adapter(folder, files);
}

}  // namespace coupler

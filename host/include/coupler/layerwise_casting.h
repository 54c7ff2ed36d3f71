// Keeps weights in a smaller dtype than they compute in: Accelerate's
// attach_layerwise_casting_hooks, for an unmodified model in memory.
//
//   auto casting = coupler::attach_layerwise_casting(
//       *model, {.storage_dtype = torch::kFloat8_e4m3fn, .compute_dtype = torch::kBFloat16,
//                .skip_modules_pattern = {"norm", "lm_head"}});
//
// The parameters of the layers have the storage dtype; every operation on one gets its values in
// the compute dtype, converted for that operation. This is for inference, and saves memory, not
// time: half of it for float8 instead of bfloat16. Values are rounded without scales; see
// coupler/quantize.h for less loss.
//
// Called by the thread that owns the model, not while it computes; any thread may then use it.
#pragma once

#include <c10/core/ScalarType.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace coupler {

// For attach_layerwise_casting.
struct LayerwiseCastingOptions {
  // Of the parameters: kFloat8_e4m3fn, kFloat8_e5m2, kBFloat16 or kHalf.
  c10::ScalarType storage_dtype = c10::ScalarType::Float8_e4m3fn;
  // Of operations on them; floating-point, and wider than the storage dtype or as wide.
  c10::ScalarType compute_dtype = c10::ScalarType::BFloat16;
  // Modules that are skipped with all they contain: regular expressions (ECMAScript) that match a
  // part of the dotted name, and names of classes as in no_split_module_classes. Each must match.
  std::vector<std::string> skip_modules_pattern;
  std::vector<std::string> skip_modules_classes;
  // Classes that are cast, instead of Accelerate's: torch::nn's Linear, Conv1d to Conv3d and
  // ConvTranspose1d to ConvTranspose3d.
  std::vector<std::string> classes;
};

namespace adapters {
class CastHook;
}

// Keeps the conversion in place. Without it, operations get the storage dtype, which most do not
// take. Movable.
class LayerwiseCasting {
 public:
  // Made by attach_layerwise_casting.
  explicit LayerwiseCasting(std::vector<std::shared_ptr<adapters::CastHook>> hooks)
      : hooks_(std::move(hooks)) {}

  // The dotted names of the parameters that were cast, in order of registration.
  std::vector<std::string> parameters() const;

 private:
  std::vector<std::shared_ptr<adapters::CastHook>> hooks_;
};

// Casts the layers' floating-point parameters to the storage dtype, in place, and turns
// requires_grad off for them. A parameter shared with a module that is not cast stays as it is.
// Throws Error(kInvalidArgument) naming what is wrong (a dtype, an entry that matches nothing, a
// model without layers to cast, a parameter on meta), and Error(kUsage) for a model that is
// quantized, dispatched or sharded; the model is then unchanged.
[[nodiscard]] LayerwiseCasting attach_layerwise_casting(
    torch::nn::Module& model, const LayerwiseCastingOptions& options = {});

// The same for module holders.
template <class Holder>
auto attach_layerwise_casting(Holder& model, const LayerwiseCastingOptions& options = {})
    -> decltype(attach_layerwise_casting(*model, options)) {
  return attach_layerwise_casting(*model, options);
}

}  // namespace coupler

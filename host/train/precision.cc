#include "train/precision.h"

#include <ATen/autocast_mode.h>
#include <coupler/autocast.h>
#include <coupler/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>
#include <string_view>
#include <vector>

namespace coupler {
namespace {

[[noreturn]] void refuse(const std::string& precision, c10::DeviceType device,
                         const std::string& reason, const std::string& instead) {
  throw Error(ErrorCode::kUnsupported,
              fmt::format("training.mixed_precision is {}, which the device {} cannot compute: {}",
                          precision, c10::DeviceTypeName(device, /*lower_case=*/true), reason),
              {.subject = "training.mixed_precision",
               .hint = fmt::format("use training.mixed_precision = \"{}\"", instead)});
}

// Empty where the device multiplies and differentiates in the type.
std::string why_not(c10::DeviceType device, c10::ScalarType type) {
  try {
    const at::AutoGradMode grad(true);
    const at::Tensor weight = at::ones({8, 8}, device).requires_grad_(true);
    at::Tensor product;
    {
      const AutocastScope scope(AutocastSettings{device, type});
      product = at::linear(at::ones({4, 8}, device), weight);
    }
    if (product.scalar_type() != type) return "autocast leaves matrix products as they are";
    product.to(at::kFloat).sum().backward();
    const float gradient = weight.grad()[0][0].item<float>();
    return gradient == 4 ? "" : fmt::format("a gradient of 4 came out as {}", gradient);
  } catch (const c10::Error& error) {
    const std::string_view text = error.what_without_backtrace();
    return std::string(text.substr(0, text.find('\n')));
  }
}

std::string names(const std::set<c10::ScalarType>& types) {
  std::vector<std::string_view> result;
  for (const c10::ScalarType type : types) result.emplace_back(c10::toString(type));
  return fmt::format("{}", fmt::join(result, " and "));
}

}  // namespace

std::optional<c10::ScalarType> autocast_type(const std::string& mixed_precision) {
  if (mixed_precision == "bf16") return at::kBFloat16;
  if (mixed_precision == "fp16") return at::kHalf;
  return std::nullopt;
}

void require_precision(const std::string& mixed_precision, c10::DeviceType device) {
  if (mixed_precision == "fp8") {
    refuse(mixed_precision, device,
           device == c10::DeviceType::CPU
               ? "CPUs have no fp8 matrix units, and LibTorch's scaled matmul there converts to "
                 "wider types first, slower than fp32"
               : "this version has no fp8 layers for it",
           "bf16");
  }
  const auto type = autocast_type(mixed_precision);
  if (!type) return;
  const std::string reason = why_not(device, *type);
  if (!reason.empty()) {
    refuse(mixed_precision, device, reason, *type == at::kHalf ? "bf16" : "no");
  }
}

std::string describe_types(const Strategy& model, const TrainingConfig& config) {
  const ModelTypes types = model.types();
  const auto type = autocast_type(config.mixed_precision);
  std::string computed = names(types.computed);
  if (type) computed = fmt::format("{} (inside autocast {})", computed, c10::toString(*type));
  return fmt::format(
      "mixed precision {}: '{}' is stored in {}, computed in {}, its gradients reduced in {}, the "
      "optimizer runs in {}",
      config.mixed_precision, model.model().name, names(types.stored), computed,
      names(types.reduced), names(types.stored));
}

void drop_cast_copies() { at::autocast::clear_cache(); }

}  // namespace coupler

#include "precision/precision.h"

#include <ATen/autocast_mode.h>
#include <coupler/autocast.h>
#include <coupler/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "precision/fp8_linear.h"
#include "tensors/autocast_state.h"

namespace coupler {
namespace {

[[noreturn]] void refuse_precision(const std::string& precision, c10::DeviceType device,
                                   const std::string& reason, const std::string& instead) {
  throw Error(
      ErrorCode::kUnsupported,
      fmt::format("training.mixed_precision is {}, which the device {} does not support: {}",
                  precision, c10::DeviceTypeName(device, /*lower_case=*/true), reason),
      {.subject = "training.mixed_precision", .hint = "use training.mixed_precision = " + instead});
}

std::string first_line(const c10::Error& error) {
  const std::string_view text = error.what_without_backtrace();
  return std::string(text.substr(0, text.find('\n')));
}

// Why the device cannot multiply and differentiate in the type; empty if it can.
std::string why_not(c10::DeviceType device, c10::ScalarType type) {
  try {
    const at::AutoGradMode grad(true);
    const at::Tensor weight = at::ones({8, 8}, device).requires_grad_(true);
    at::Tensor product;
    {
      const AutocastScope scope(AutocastSettings{device, type});
      product = at::linear(at::ones({4, 8}, device), weight);
    }
    if (product.scalar_type() != type) return "autocast does not convert matrix products";
    product.to(at::kFloat).sum().backward();
    const float gradient = weight.grad()[0][0].item<float>();
    return gradient == 4 ? "" : fmt::format("a gradient of 4 came out as {}", gradient);
  } catch (const c10::Error& error) {
    return first_line(error);
  }
}

// The same for fp8. Only rounding distinguishes it from bf16: 17/16 needs four bits of mantissa,
// and e4m3 has three.
std::string why_no_fp8(c10::DeviceType device, c10::ScalarType gradients) {
  try {
    const at::AutoGradMode grad(true);
    const at::Tensor weight = at::ones({16, 16}, device).requires_grad_(true);
    const at::Tensor input = at::full({16, 16}, 17.0 / 16, device).requires_grad_(true);
    at::Tensor product, other;
    {
      AutocastSettings settings{device, at::kBFloat16};
      settings.fp8_gradients = gradients;
      const AutocastScope scope(settings);
      product = at::linear(input, weight);
      other = at::matmul(input, weight.t());
    }
    const float value = product[0][0].item<float>();
    if (value == 17 || other[0][0].item<float>() == 17) {
      return "linear layers do not reach the dispatch key that fp8 uses";
    }
    product.to(at::kFloat).sum().backward();
    const float gradient = weight.grad()[0][0].item<float>();
    if (value == 16 && gradient == 16 && input.grad()[0][0].item<float>() == 16) return "";
    return fmt::format("a product and a gradient of 16 came out as {} and {}", value, gradient);
  } catch (const c10::Error& error) {
    return first_line(error);
  }
}

std::string names(const std::set<c10::ScalarType>& types) {
  std::vector<std::string_view> result;
  for (const c10::ScalarType type : types) result.emplace_back(c10::toString(type));
  return fmt::format("{}", fmt::join(result, " and "));
}

}  // namespace

std::optional<c10::ScalarType> precision::autocast_type(const std::string& mixed_precision) {
  if (mixed_precision == "bf16" || mixed_precision == "fp8") return at::kBFloat16;
  if (mixed_precision == "fp16") return at::kHalf;
  return std::nullopt;
}

std::optional<c10::ScalarType> precision::fp8_gradient_type(const config::TrainingConfig& config) {
  if (config.mixed_precision != "fp8") return std::nullopt;
  return config.fp8_format == "e4m3" ? at::kFloat8_e4m3fn : at::kFloat8_e5m2;
}

void precision::require_precision(const config::TrainingConfig& config, c10::DeviceType device) {
  const std::string& name = config.mixed_precision;
  const auto type = precision::autocast_type(name);
  if (!type) return;
  if (const auto gradients = precision::fp8_gradient_type(config)) {
    if (const std::string missing = precision::why_no_fp8_units(device);
        !missing.empty() && !config.fp8_emulate) {
      refuse_precision(name, device, missing,
                       "\"bf16\", or, to try a program, training.fp8_emulate = true");
    }
    const std::string reason = why_no_fp8(device, *gradients);
    if (!reason.empty()) refuse_precision(name, device, reason, "\"bf16\"");
    return;
  }
  const std::string reason = why_not(device, *type);
  if (!reason.empty())
    refuse_precision(name, device, reason, *type == at::kHalf ? "\"bf16\"" : "\"no\"");
}

std::string precision::describe_types(const std::string& model, const strategy::ModelTypes& types,
                                      const config::TrainingConfig& config) {
  const auto type = precision::autocast_type(config.mixed_precision);
  std::string computed = names(types.computed);
  if (type) {
    computed = fmt::format("{} (inside autocast {}{})", computed, c10::toString(*type),
                           precision::fp8_gradient_type(config) ? ", linear layers fp8" : "");
  }
  return fmt::format(
      "mixed precision {}: '{}' is stored in {}, computed in {}, its gradients are reduced in {}, "
      "the optimizer runs in {}",
      config.mixed_precision, model, names(types.stored), computed, names(types.reduced),
      names(types.stored));
}

void precision::drop_cast_copies() { at::autocast::clear_cache(); }

AutocastSettings precision::autocast_now() {
  // Prefers a device on which autocast is enabled: the CPU's settings do not apply there.
  auto device = c10::DeviceType::CPU;
  for (const c10::DeviceType other : at::autocast::_AUTOCAST_SUPPORTED_DEVICES) {
    if (other != device && at::autocast::is_autocast_enabled(other)) {
      device = other;
      break;
    }
  }
  AutocastSettings settings{.device = device,
                            .type = at::autocast::get_autocast_dtype(device),
                            .enabled = at::autocast::is_autocast_enabled(device),
                            .cache_casts = false};
  settings.fp8_gradients = tensors::fp8_linear();
  return settings;
}

namespace {

// The calling thread's latest scope; null outside of all.
thread_local AutocastScope* latest_scope = nullptr;

// The scope of the bodies of loops that the thread is in.
thread_local std::weak_ptr<void> scope_of_loops;

// Returns the fp8 type that was set before.
std::optional<c10::ScalarType> apply(const AutocastSettings& settings) {
  at::autocast::set_autocast_enabled(settings.device, settings.enabled);
  at::autocast::set_autocast_dtype(settings.device, settings.type);
  at::autocast::set_autocast_cache_enabled(settings.cache_casts);
  return tensors::set_fp8_linear(settings.fp8_gradients);
}

}  // namespace

std::shared_ptr<void> precision::loop_scope(const AutocastSettings& settings) {
  if (std::shared_ptr<void> scope = scope_of_loops.lock()) {
    at::autocast::clear_cache();  // as at the end of the body before
    return scope;
  }
  if (latest_scope != nullptr) return nullptr;
  std::shared_ptr<void> scope = std::make_shared<AutocastScope>(settings);
  scope_of_loops = scope;
  return scope;
}

AutocastScope::AutocastScope(const std::optional<AutocastSettings>& settings) {
  if (!settings) return;
  const c10::DeviceType device = settings->device;
  before_ = AutocastSettings{device, at::autocast::get_autocast_dtype(device),
                             at::autocast::is_autocast_enabled(device),
                             at::autocast::is_autocast_cache_enabled()};
  AutocastSettings now = *settings;
  if (!now.enabled) now.fp8_gradients.reset();
  before_->fp8_gradients = apply(now);
  at::autocast::increment_nesting();
  outer_ = std::exchange(latest_scope, this);
  thread_ = &latest_scope;
}

AutocastScope::~AutocastScope() {
  if (!before_ || thread_ != &latest_scope) return;
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  if (latest_scope == this) {
    apply(*before_);
    latest_scope = outer_;
    return;
  }
  // A loop has ended inside a scope that began in its body, which stays in force.
  AutocastScope* inner = latest_scope;
  while (inner->outer_ != this) inner = inner->outer_;
  inner->before_ = before_;
  inner->outer_ = outer_;
}

}  // namespace coupler

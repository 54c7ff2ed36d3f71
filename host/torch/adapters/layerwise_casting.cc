// The public functions of coupler/layerwise_casting.h.
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <coupler/layerwise_casting.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <regex>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "placement/module_tree.h"
#include "residency/intercept.h"
#include "residency/parameter_hooks.h"

namespace coupler {

// Gives operations the values of one parameter in another type.
class adapters::CastHook : public residency::ParameterHook {
 public:
  CastHook(std::string name, const at::Tensor& parameter, at::ScalarType type)
      : ParameterHook(residency::HookPlace::kValues),
        name_(std::move(name)),
        parameter_(parameter),
        type_(type) {}

  const std::string& name() const { return name_; }

  void around(const c10::OperatorHandle& op, torch::jit::Stack& stack,
              const std::function<void()>& run) override {
    if (!is_view(op)) convert(op, stack);
    run();
  }

 private:
  // A result shows an argument; it is converted where it is used.
  static bool is_view(const c10::OperatorHandle& op) {
    const auto& results = op.schema().returns();
    return std::any_of(results.begin(), results.end(), [](const c10::Argument& result) {
      return result.alias_info() != nullptr && !result.alias_info()->isWrite();
    });
  }
  void convert(const c10::OperatorHandle& op, torch::jit::Stack& stack) const {
    const auto& arguments = op.schema().arguments();
    const size_t first = stack.size() - arguments.size();
    for (size_t i = 0; i < arguments.size(); ++i) {
      const c10::AliasInfo* const alias = arguments[i].alias_info();
      if (alias != nullptr && alias->isWrite()) continue;  // a checkpoint that is read into it
      residency::change_tensors(stack[first + i], [this](const at::Tensor& tensor) {
        return residency::shows(tensor, parameter_) ? tensor.to(type_) : tensor;
      });
    }
  }

  const std::string name_;
  const at::Tensor parameter_;
  const at::ScalarType type_;
};

namespace {

const std::vector<std::string>& layers_of_accelerate() {
  static const std::vector<std::string> kClasses = {
      "torch::nn::Linear",          "torch::nn::Conv1d",          "torch::nn::Conv2d",
      "torch::nn::Conv3d",          "torch::nn::ConvTranspose1d", "torch::nn::ConvTranspose2d",
      "torch::nn::ConvTranspose3d",
  };
  return kClasses;
}

void check_dtypes(const LayerwiseCastingOptions& options) {
  const at::ScalarType storage = options.storage_dtype, compute = options.compute_dtype;
  const bool known = storage == at::kFloat8_e4m3fn || storage == at::kFloat8_e5m2 ||
                     storage == at::kBFloat16 || storage == at::kHalf;
  if (!known) {
    fail_argument(
        fmt::format("layerwise casting: weights cannot be stored in {}", c10::toString(storage)),
        "storage_dtype",
        "use kFloat8_e4m3fn, kFloat8_e5m2, kBFloat16 or kHalf; coupler::quantize stores 8 "
        "or 4 bits with scales");
  }
  const bool computes = compute == at::kBFloat16 || compute == at::kHalf || compute == at::kFloat ||
                        compute == at::kDouble;
  if (!computes || c10::elementSize(compute) < c10::elementSize(storage)) {
    fail_argument(
        fmt::format("layerwise casting: compute_dtype {} cannot be used with storage_dtype "
                    "{}",
                    c10::toString(compute), c10::toString(storage)),
        "compute_dtype", "use kBFloat16, kHalf, kFloat or kDouble");
  }
}

struct CastChoice {
  std::vector<std::pair<std::string, at::Tensor>> cast;
  std::set<const void*> kept;            // parameters of other modules
  std::set<const std::string*> matched;  // entries of the options
};

using Parts = std::vector<std::pair<const std::string*, std::regex>>;

Parts skipped_parts(const LayerwiseCastingOptions& options) {
  Parts result;
  for (const std::string& pattern : options.skip_modules_pattern) {
    try {
      result.emplace_back(&pattern, std::regex(pattern));
    } catch (const std::regex_error& error) {
      fail_argument(fmt::format("skip_modules_pattern '{}' is not a regular expression: {}",
                                for_message(pattern), error.what()),
                    "skip_modules_pattern", "write it as for std::regex");
    }
  }
  return result;
}

void choose(const torch::nn::Module& module, const std::string& name, bool skipped,
            const Parts& parts, const LayerwiseCastingOptions& options, CastChoice& choice) {
  for (const auto& [pattern, regex] : parts) {
    if (!std::regex_search(name, regex)) continue;
    choice.matched.insert(pattern);
    skipped = true;
  }
  for (const std::string& type : options.skip_modules_classes) {
    if (!placement::names_class({type}, module.name())) continue;
    choice.matched.insert(&type);
    skipped = true;
  }
  const auto& classes = options.classes.empty() ? layers_of_accelerate() : options.classes;
  const bool cast = !skipped && placement::names_class(classes, module.name());
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    if (!item.value().defined()) continue;
    if (cast && item.value().is_floating_point()) {
      choice.cast.emplace_back(name.empty() ? item.key() : name + "." + item.key(), item.value());
    } else {
      choice.kept.insert(item.value().unsafeGetTensorImpl());
    }
  }
  for (const auto& item : module.named_children()) {
    choose(*item.value(), name.empty() ? item.key() : name + "." + item.key(), skipped, parts,
           options, choice);
  }
}

void check_choice(const CastChoice& choice, const LayerwiseCastingOptions& options,
                  const std::string& model) {
  const auto require_matched = [&](const std::vector<std::string>& entries, const char* option) {
    for (const std::string& entry : entries) {
      if (choice.matched.count(&entry) != 0) continue;
      fail_argument(fmt::format("layerwise casting: {} '{}' matches no module of '{}'", option,
                                for_message(entry), model),
                    option, "remove the entry, or correct it");
    }
  };
  require_matched(options.skip_modules_pattern, "skip_modules_pattern");
  require_matched(options.skip_modules_classes, "skip_modules_classes");
  if (choice.cast.empty()) {
    fail_argument(fmt::format("layerwise casting: '{}' has no layers to cast", model), "classes",
                  "name the classes of its layers in `classes`, or skip less");
  }
  for (const auto& [name, parameter] : choice.cast) {
    if (parameter.is_meta()) {
      fail_argument(fmt::format("layerwise casting: '{}' is on meta and has no values", name), name,
                    "load the model's weights first");
    }
    if (residency::managed_storage_of(parameter) != nullptr) {
      fail_usage(fmt::format("layerwise casting: '{}' belongs to a model that is quantized, "
                             "dispatched or sharded",
                             name),
                 name,
                 "cast the model before, or load it in a smaller dtype "
                 "(LoadAndDispatchOptions::dtype)");
    }
  }
}

}  // namespace

std::vector<std::string> LayerwiseCasting::parameters() const {
  std::vector<std::string> result;
  for (const auto& hook : hooks_) result.push_back(hook->name());
  return result;
}

LayerwiseCasting attach_layerwise_casting(torch::nn::Module& model,
                                          const LayerwiseCastingOptions& options) {
  check_dtypes(options);
  CastChoice choice;
  choose(model, "", /*skipped=*/false, skipped_parts(options), options, choice);
  std::set<const void*> seen = choice.kept;
  std::erase_if(choice.cast, [&](const auto& item) {
    return !seen.insert(item.second.unsafeGetTensorImpl()).second;
  });
  check_choice(choice, options, model.name());
  const at::NoGradGuard no_grad;
  std::vector<std::shared_ptr<adapters::CastHook>> hooks;
  for (const auto& [name, parameter] : choice.cast) {
    parameter.set_requires_grad(false);
    parameter.set_data(parameter.to(options.storage_dtype));
    hooks.push_back(std::make_shared<adapters::CastHook>(name, parameter, options.compute_dtype));
    residency::add_hook(parameter, hooks.back());
  }
  residency::restore_hooks();  // set_data took away those of others
  return LayerwiseCasting(std::move(hooks));
}

}  // namespace coupler

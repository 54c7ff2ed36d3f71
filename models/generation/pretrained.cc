#include "generation/pretrained.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>
#include <coupler/error.h>
#include <fmt/format.h>

#include <filesystem>
#include <unordered_set>
#include <utility>

#include "base/durable_file.h"
#include "base/units.h"
#include "tensors/safetensors.h"
#include "weights/write_weights.h"

namespace coupler {
namespace {

namespace fs = std::filesystem;

std::string name_of(c10::ScalarType type) { return std::string(c10::getDtypeNames(type).first); }

// The device on which a model with these options will run.
c10::Device running_device(const PretrainedOptions& options) {
  const auto kind = at::getAccelerator();
  if (!kind || at::accelerator::deviceCount() == 0) return c10::kCPU;
  const c10::Device first(*kind, 0);
  if (const auto* const map = std::get_if<DeviceMap>(&options.device_map)) {
    for (const auto& [path, device] : map->entries()) {
      if (device.is_accelerator()) return first;
    }
    return c10::kCPU;
  }
  if (std::get<std::string>(options.device_map).empty()) return c10::kCPU;
  if (options.max_memory.empty()) return first;
  for (const auto& [device, bytes] : options.max_memory.devices()) {
    if (device.is_accelerator()) return first;
  }
  return c10::kCPU;
}

// Tries the operations of a transformer on dummy data.
bool computes(c10::Device device, c10::ScalarType type) {
  if (!c10::isFloatingType(type)) return false;
  const at::NoGradGuard no_grad;
  try {
    const at::TensorOptions options = at::TensorOptions(type).device(device);
    const at::Tensor x = at::zeros({1, 2, 4, 8}, options), w = at::zeros({8, 8}, options);
    at::layer_norm(at::gelu(at::linear(x, w)), {8});
    at::softmax(at::scaled_dot_product_attention(x, x, x), -1);
    return true;
  } catch (const c10::Error&) {
    return false;  // LibTorch has no kernel for this type
  }
}

}  // namespace

c10::ScalarType usable_dtype(const ModelConfig& config, const PretrainedOptions& options) {
  constexpr c10::ScalarType kKnown[] = {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble};
  c10::ScalarType type = at::kFloat;
  std::string from = "float32 is the default";
  if (options.dtype) {
    type = *options.dtype;
    from = "options.dtype";
  } else if (const std::string saved = config.dtype(); !saved.empty()) {
    from = config.where();
    bool known = false;
    for (const c10::ScalarType candidate : kKnown) {
      if (name_of(candidate) == saved) {
        type = candidate;
        known = true;
      }
    }
    if (!known)
      throw Error(
          ErrorCode::kUnsupported,
          fmt::format("{}: the weights' dtype '{}' is not supported", config.where(), saved),
          {.subject = "dtype", .hint = "set options.dtype, for example to torch::kFloat"});
  }
  const c10::Device device = running_device(options);
  if (computes(device, type)) return type;
  std::string able;
  for (const c10::ScalarType candidate : kKnown) {
    if (computes(device, candidate)) able += (able.empty() ? "" : ", ") + name_of(candidate);
  }
  throw Error(
      ErrorCode::kUnsupported,
      fmt::format("{} cannot compute a transformer in {} ({})", device.str(), name_of(type), from),
      {.subject = "dtype", .hint = fmt::format("set options.dtype to one of {}", able)});
}

DispatchedModel load_pretrained(torch::nn::Module& model, const std::string& folder,
                                const ModelConfig& config, const PretrainedOptions& options,
                                const char* block_class,
                                std::function<std::string(const std::string&)> names) {
  LoadAndDispatchOptions load;
  load.device_map = options.device_map;
  load.max_memory = options.max_memory;
  load.no_split_module_classes = {block_class};
  load.offload_folder = options.offload_folder;
  load.dtype = usable_dtype(config, options);
  load.strict = options.strict;
  load.prefetch = options.prefetch;
  load.rename = std::move(names);
  load.quantize = options.quantize;
  if (load.quantize) {
    load.quantize->linear_classes.emplace_back("Head");
    load.quantize->transposed_classes.emplace_back("Conv1D");
  }
  return load_checkpoint_and_dispatch(model, folder, load);
}

void save_pretrained(const torch::nn::Module& model, const ModelConfig& config,
                     const std::string& folder, const std::string& max_shard_size) {
  const uint64_t limit = parse_byte_size(max_shard_size, "max_shard_size");
  WeightSource source;
  std::unordered_set<const void*> written;
  std::string dtype;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    if (!written.insert(tensor.unsafeGetTensorImpl()).second)
      return;  // another name of a tied tensor
    if (tensor.is_meta())
      throw Error(ErrorCode::kInvalidArgument, fmt::format("'{}' has no values to save", name),
                  {.subject = name, .hint = "load the model's weights first"});
    if (dtype.empty() && tensor.is_floating_point()) dtype = name_of(tensor.scalar_type());
    source.tensors.push_back(
        {.name = name,
         .dtype = safetensors::dtype_of(tensor.scalar_type(), name),
         .shape = tensor.sizes().vec(),
         .read = [tensor](const ByteSink& sink) {
           // A copy, because offloaded weights are in memory only during one operation.
           const at::NoGradGuard no_grad;
           const at::Tensor dense =
               tensor.detach().clone(at::MemoryFormat::Contiguous).to(at::kCPU);
           sink(static_cast<const char*>(dense.const_data_ptr()), dense.nbytes());
         }});
  };
  for (const auto& item : model.named_parameters()) add(item.key(), item.value());
  for (const auto& item : model.named_buffers()) add(item.key(), item.value());
  fs::create_directories(folder);
  write_weights(source, folder, limit);
  replace_file((fs::path(folder) / "config.json").string(), config.to_json(dtype));
}

}  // namespace coupler

// Saves weights only, for other programs: save_model and save.
#include <coupler/accelerator.h>
#include <coupler/detail/object_kinds.h>
#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <unordered_map>

#include "accelerator/accelerator.h"
#include "accelerator/consistency_check.h"
#include "base/durable_file.h"
#include "base/units.h"
#include "checkpoint/state_values.h"
#include "formats/safetensors_writer.h"
#include "formats/weight_index.h"
#include "tensor_parallel/divided_parameter.h"
#include "tensors/safetensors.h"
#include "weights/write_weights.h"

namespace coupler {
namespace {

namespace fs = std::filesystem;

// The suffix of a file until it is complete on disk.
constexpr const char* kTemporarySuffix = ".new";

// Elements that are converted at a time.
constexpr int64_t kConverted = int64_t{1} << 20;

safetensors::TensorEntry entry_of(const std::string& name, std::vector<int64_t> sizes,
                                  at::ScalarType type) {
  return {name, safetensors::dtype_of(type, name), std::move(sizes)};
}

// From any device, as elements of that type.
void write(safetensors::Writer& file, const std::string& name, const at::Tensor& tensor,
           at::ScalarType type) {
  const at::Tensor dense = tensor.detach().to(at::kCPU).contiguous();
  if (dense.scalar_type() == type) {
    file.write(name, dense.const_data_ptr(), dense.nbytes());
    return;
  }
  const at::Tensor flat = dense.view(-1);
  for (int64_t at = 0; at < flat.numel(); at += kConverted) {
    const at::Tensor part = flat.slice(0, at, std::min(at + kConverted, flat.numel())).to(type);
    file.write(name, part.const_data_ptr(), part.nbytes());
  }
}

void require_floating(std::optional<at::ScalarType> dtype) {
  if (!dtype || c10::isFloatingType(*dtype)) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("save_model: dtype is {}, which is not floating-point: weights would lose "
                  "their fractions",
                  c10::getDtypeNames(*dtype).first),
      {.subject = "dtype", .hint = "pass torch::kBFloat16, torch::kHalf or torch::kFloat"});
}

// Runs rank 0's writes. After a failure it skips them, so that rank 0 still takes part in the other
// ranks' gathers.
class WeightWriter {
 public:
  explicit WeightWriter(bool writes) : writes_(writes) {}

  template <class Action>
  void attempt(const Action& action) {
    if (!writes_ || problem_) return;
    try {
      action();
    } catch (const Error& error) {
      problem_ = error;
    } catch (const std::exception& error) {
      problem_ = Error(ErrorCode::kIo, fmt::format("save_model: {}", error.what()));
    }
  }
  const std::optional<Error>& problem() const { return problem_; }

 private:
  const bool writes_;
  std::optional<Error> problem_;
};

}  // namespace

void Accelerator::save_model_of(const detail::ModelRef& reference, const std::string& folder,
                                const SaveModelOptions& options) {
  if (!options.safe_serialization) {
    throw Error(
        ErrorCode::kUnsupported,
        "save_model: safe_serialization is false, but only safetensors is written: PyTorch's "
        "own format can carry code",
        {.subject = "safe_serialization",
         .hint = "read model.safetensors in Python with safetensors.torch.load_file"});
  }
  require_floating(options.dtype);
  const uint64_t limit = parse_byte_size(options.max_shard_size, "max_shard_size");
  strategy::Strategy& strategy = impl_->strategy_of(reference);
  strategy.synchronize();
  const strategy::Model& model = strategy.model();
  std::unordered_map<std::string, size_t> parameters;
  std::unordered_map<std::string, const at::Tensor*> others;  // equal on every rank
  std::unordered_map<std::string, safetensors::TensorEntry> entries;
  std::unordered_map<std::string, at::ScalarType> types;
  std::vector<formats::SizedTensor> sizes;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape, at::ScalarType stored) {
    const at::ScalarType type =
        c10::isFloatingType(stored) ? options.dtype.value_or(stored) : stored;
    auto entry = entry_of(name, std::move(shape), type);
    sizes.push_back({name, safetensors::tensor_bytes(entry.dtype, entry.shape).value_or(0)});
    entries.emplace(name, std::move(entry));
    types.emplace(name, type);
  };
  for (size_t i = 0; i < model.parameters.size(); ++i) {
    parameters[model.parameters[i].name] = i;
    add(model.parameters[i].name, model.parameters[i].whole_sizes(), strategy.stored_type(i));
  }
  for (const strategy::NamedTensors* const list : {&model.fixed, &model.buffers}) {
    for (const auto& [name, tensor] : *list) {
      others[name] = &tensor;
      add(name, tensor.sizes().vec(), tensor.scalar_type());
    }
  }
  const formats::WeightFiles weights = formats::divide_weights(sizes, limit);
  WeightWriter writer(is_main_process());
  std::optional<weights::WeightTarget> target;
  writer.attempt([&] { target.emplace(folder, weights); });
  for (const formats::WeightFile& file : weights.files) {
    std::vector<safetensors::TensorEntry> own;
    std::set<std::string> names(file.tensors.begin(), file.tensors.end());
    for (const std::string& name : file.tensors) own.push_back(entries.at(name));
    safetensors::Metadata metadata{{"format", "pt"}};
    for (const auto& [alias, name] : model.aliases) {
      if (names.count(name) != 0) metadata[alias] = name;
    }
    // Every rank gathers in the order of the file.
    const auto layout = safetensors::lay_out(own, metadata, file.name);
    std::optional<safetensors::Writer> bytes;
    writer.attempt([&] { bytes.emplace(target->unfinished(file), own, metadata); });
    for (const safetensors::TensorInfo& info : layout.tensors) {
      const auto parameter = parameters.find(info.name);
      const at::Tensor value =
          parameter == parameters.end()
              ? *others.at(info.name)
              : tensor_parallel::whole_of(model, parameter->second,
                                          strategy.whole_parameter(parameter->second));
      writer.attempt([&] { write(*bytes, info.name, value, types.at(info.name)); });
    }
    writer.attempt([&] { bytes->finish(); });
  }
  writer.attempt([&] { target->finish(); });
  target.reset();
  check_consistency(*impl_->comm, {.operation = "save_model", .problem = writer.problem()});
}

void Accelerator::save(const StateDict& state, const std::string& path, bool on_each_node) {
  if (on_each_node ? local_rank() != 0 : rank() != 0) return;
  std::vector<safetensors::TensorEntry> entries;
  for (const auto& [name, tensor] : state.tensors()) {
    entries.push_back(entry_of(name, tensor.sizes().vec(), tensor.scalar_type()));
  }
  safetensors::Metadata metadata{{"format", "pt"}};
  if (!state.values().empty()) metadata[checkpoint::kValuesKey] = checkpoint::values_as_json(state);
  const std::string temporary = path + kTemporarySuffix;
  fs::remove(temporary);  // left by a killed process
  safetensors::Writer writer(temporary, std::move(entries), metadata);
  for (const safetensors::TensorInfo& info : writer.tensors()) {
    const at::Tensor& tensor = state.tensor(info.name);
    write(writer, info.name, tensor, tensor.scalar_type());
  }
  writer.finish();
  rename_durably(temporary, path);
}

void Accelerator::save(const std::map<std::string, at::Tensor>& tensors, const std::string& path,
                       bool on_each_node) {
  StateDict state;
  for (const auto& [name, tensor] : tensors) state.set(name, tensor);
  save(state, path, on_each_node);
}

void Accelerator::save(const torch::nn::Module& module, const std::string& path,
                       bool on_each_node) {
  StateDict state;
  detail::save_module(module, state);
  save(state, path, on_each_node);
}

}  // namespace coupler

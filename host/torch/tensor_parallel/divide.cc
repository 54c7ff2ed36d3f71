#include "tensor_parallel/divide.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/jit/runtime/graph_executor.h>

#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "empty_weights/empty_weights.h"
#include "empty_weights/fill_in_chunks.h"
#include "empty_weights/replay.h"
#include "tensor_parallel/divided_layer.h"
#include "tensor_parallel/divided_parameter.h"
#include "tensors/tensor_ops.h"

namespace coupler::tensor_parallel {
namespace {

using sharding::PlannedLayers;

sharding::PlannedModel as_planned(const strategy::Model& model) {
  sharding::PlannedModel result{.aliases = model.aliases};
  for (const strategy::ModelModule& module : model.modules)
    result.modules.push_back({module.name, module.type});
  for (const strategy::ModelParameter& parameter : model.parameters) {
    result.parameters.push_back(
        {parameter.name, parameter.tensor.sizes().vec(), parameter.tensor.requires_grad()});
  }
  return result;
}

// Which of a model's tensors have no values yet.
std::string names_on_meta(const strategy::Model& model) {
  std::vector<std::string> names;
  for (const strategy::ModelParameter& parameter : model.parameters) {
    if (parameter.tensor.is_meta()) names.push_back(parameter.name);
  }
  for (const auto& [name, buffer] : model.buffers) {
    if (buffer.is_meta()) names.push_back(name);
  }
  if (names.empty()) return "none";
  if (names.size() == model.parameters.size() + model.buffers.size()) return "all";
  return fmt::format("{}", fmt::join(names, ", "));
}

class Divider {
 public:
  Divider(strategy::Model& model, const Plans& plans, const Group& group,
          const DivideOptions& options)
      : model_(model),
        plans_(plans),
        group_(group),
        options_(options),
        division_(sharding::divide_model(as_planned(model), plans, group->size(), group->rank(),
                                         options.sequence.has_value())) {}

  void run() {
    compare();
    take_values();
    install_hooks();
    model_.tensor_comm = group_;
  }

 private:
  void compare();
  void take_values();
  void draw_values();
  void receive_values();
  size_t rank_0_says(size_t number);
  void take_whole(size_t number, const at::Tensor& value);
  void take_value(size_t parameter, const at::Tensor& whole);
  void take_chunk(size_t parameter, int64_t begin, const at::Tensor& chunk);
  void install_hooks();

  strategy::Model& model_;
  const Plans& plans_;
  const Group& group_;
  const DivideOptions options_;
  const sharding::ModelDivision division_;
  // What has no values yet: parameters, then buffers. Messages name them by their numbers here.
  std::vector<empty_weights::MetaTensor> on_meta_;
  std::vector<size_t> indices_;           // of its parameters, in the model
  std::unordered_set<size_t> in_chunks_;  // numbers of those that are divided
  at::Tensor part_;                       // of the parameter whose chunks arrive
};

void Divider::compare() {
  comm::SharedSettings settings = strategy::shared_settings_of(model_);
  settings.emplace_back("the parameters and buffers that were built inside coupler::EmptyWeights",
                        names_on_meta(model_));
  settings.emplace_back(
      "parallel.sequence",
      options_.sequence ? fmt::format("of dimension {}", *options_.sequence) : "false");
  settings.emplace_back("parallel.overlap_chunks", std::to_string(options_.overlap_chunks));
  for (const std::vector<PlannedLayers>& plan : plans_) {
    for (const PlannedLayers& line : plan)
      settings.emplace_back(fmt::format("the tensor plan's line for '{}'", line.pattern),
                            line.text);
  }
  group_->verify(settings);
}

void Divider::take_values() {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> others;  // with values, and not divided
  for (size_t i = 0; i < model_.parameters.size(); ++i) {
    const strategy::ModelParameter& parameter = model_.parameters[i];
    if (parameter.tensor.is_meta()) {
      if (division_.parameters.count(i) != 0 && parameter.tensor.numel() > 0)
        in_chunks_.insert(on_meta_.size());
      on_meta_.push_back({parameter.name, parameter.tensor});
      indices_.push_back(i);
    } else if (division_.parameters.count(i) == 0) {
      others.push_back(parameter.tensor.detach());
    }
  }
  for (const auto& [name, buffer] : model_.buffers) {
    if (buffer.is_meta()) {
      on_meta_.push_back({name, buffer});
    } else {
      others.push_back(buffer);
    }
  }
  group_->rank() == 0 ? draw_values() : receive_values();
  for (const auto& [index, division] : division_.parameters) {
    if (!model_.parameters[index].division)
      take_value(index, model_.parameters[index].tensor.detach().contiguous());
  }
  tensors::broadcast_coalesced(*group_, others, 0);
}

// Values become ready in the order of the operations in constructors, which differs between ranks
// whose constructors did different things. So only rank 0 draws, and says which value comes next.
void Divider::draw_values() {
  const auto take = [this](size_t i, const at::Tensor& value) {
    rank_0_says(i);
    take_whole(i, value.contiguous());
  };
  const auto take_part = [this](size_t i, int64_t begin, const at::Tensor& chunk) {
    if (begin == 0) rank_0_says(i);
    take_chunk(indices_[i], begin, chunk);
  };
  empty_weights::materialize(on_meta_, take, {.indices = in_chunks_, .sink = take_part});
}

void Divider::receive_values() {
  empty_weights::require_recordings(on_meta_);
  for (size_t left = on_meta_.size(); left > 0; --left) {
    const size_t i = rank_0_says(0);
    const at::Tensor& tensor = on_meta_[i].tensor;
    const at::TensorOptions options = tensor.options().device(at::kCPU);
    if (in_chunks_.count(i) == 0) {
      take_whole(i, at::empty(tensor.sizes(), options));
      continue;
    }
    const empty_weights::Chunks chunks(tensor.numel(), tensor.itemsize(),
                                       empty_weights::kChunkBytes);
    const at::Tensor memory = at::empty({chunks.largest()}, options);
    chunks.each([&](int64_t begin, int64_t count) {
      take_chunk(indices_[i], begin, memory.narrow(0, 0, count));
    });
  }
}

// Returns rank 0's number on every rank.
size_t Divider::rank_0_says(size_t number) {
  const at::Tensor message =
      at::full({1}, static_cast<int64_t>(number), at::TensorOptions(at::kLong).device(at::kCPU));
  group_->run(tensors::broadcast_op(message, 0));
  return static_cast<size_t>(message.item<int64_t>());
}

void Divider::take_whole(size_t number, const at::Tensor& value) {
  if (number < indices_.size()) return take_value(indices_[number], value);
  group_->run(tensors::broadcast_op(value, 0));
  empty_weights::put_value(on_meta_[number].tensor, value);
}

void Divider::take_value(size_t parameter, const at::Tensor& whole) {
  const auto division = division_.parameters.find(parameter);
  tensor_parallel::take_value(
      model_.parameters[parameter], whole,
      division == division_.parameters.end() ? std::nullopt : std::optional(division->second),
      group_);
}

// The chunk becomes rank 0's.
void Divider::take_chunk(size_t parameter, int64_t begin, const at::Tensor& chunk) {
  const strategy::ParameterDivision& division = division_.parameters.at(parameter);
  if (begin == 0) part_ = at::empty(division.part_sizes(), chunk.options());
  group_->run(tensors::broadcast_op(chunk, 0));
  copy_from_chunk(chunk, begin, division, part_);
  strategy::ModelParameter& whole = model_.parameters[parameter];
  if (begin + chunk.numel() == whole.tensor.numel())
    set_own_value(whole, std::exchange(part_, at::Tensor()), division, group_);
}

void Divider::install_hooks() {
  for (const auto& [index, use] : division_.weights) {
    const at::Tensor& weight = model_.parameters[index].tensor;
    const auto hook = std::make_shared<DividedLayer>(
        DividedWeight{use, weight, options_.sequence, options_.overlap_chunks}, group_);
    residency::add_hook(weight, hook);
    model_.layer_hooks.push_back(hook);
  }
  for (const size_t index : division_.summed) {
    model_.parameters[index].tensor.register_hook([group = group_](const at::Tensor& gradient) {
      const at::NoGradGuard no_grad;
      const at::Tensor sum = gradient.clone(at::MemoryFormat::Contiguous);
      group->run(tensors::all_reduce_op(sum, DB_SUM));
      return sum;
    });
  }
}

}  // namespace

void divide(strategy::Model& model, const Plans& plans, const Group& group,
            const DivideOptions& options) {
  Divider(model, plans, group, options).run();
}

void run_scripts_as_written() { torch::jit::getProfilingMode() = false; }

}  // namespace coupler::tensor_parallel

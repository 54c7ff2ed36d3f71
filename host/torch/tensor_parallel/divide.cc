#include "tensor_parallel/divide.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/csrc/jit/runtime/graph_executor.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "empty_weights/empty_weights.h"
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
  void take_value(size_t parameter, const at::Tensor& whole);
  void take_chunk(size_t parameter, int64_t begin, const at::Tensor& chunk);
  void install_hooks();

  strategy::Model& model_;
  const Plans& plans_;
  const Group& group_;
  const DivideOptions options_;
  const sharding::ModelDivision division_;
  at::Tensor part_;  // of the parameter whose chunks arrive
};

void Divider::compare() {
  comm::SharedSettings settings = strategy::shared_settings_of(model_);
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
  std::vector<empty_weights::MetaTensor> on_meta;
  std::vector<at::Tensor> others;  // with values, and not divided
  std::vector<size_t> indices;     // of on_meta's parameters, before the buffers
  empty_weights::InChunks in_chunks{.indices = {},
                                    .sink = [&](size_t i, int64_t begin, const at::Tensor& chunk) {
                                      take_chunk(indices[i], begin, chunk);
                                    }};
  for (size_t i = 0; i < model_.parameters.size(); ++i) {
    const strategy::ModelParameter& parameter = model_.parameters[i];
    if (parameter.tensor.is_meta()) {
      if (division_.parameters.count(i) != 0 && parameter.tensor.numel() > 0)
        in_chunks.indices.insert(on_meta.size());
      on_meta.push_back({parameter.name, parameter.tensor});
      indices.push_back(i);
    } else if (division_.parameters.count(i) == 0) {
      others.push_back(parameter.tensor.detach());
    }
  }
  for (const auto& [name, buffer] : model_.buffers) {
    if (buffer.is_meta()) {
      on_meta.push_back({name, buffer});
    } else {
      others.push_back(buffer);
    }
  }
  empty_weights::materialize(
      on_meta,
      [&](size_t i, const at::Tensor& value) {
        if (i < indices.size()) return take_value(indices[i], value);
        group_->run(tensors::broadcast_op(value, 0));
        empty_weights::put_value(on_meta[i].tensor, value);
      },
      in_chunks);
  for (const auto& [index, division] : division_.parameters) {
    if (!model_.parameters[index].division)
      take_value(index, model_.parameters[index].tensor.detach().contiguous());
  }
  tensors::broadcast_coalesced(*group_, others, 0);
}

void Divider::take_value(size_t parameter, const at::Tensor& whole) {
  const auto division = division_.parameters.find(parameter);
  tensor_parallel::take_value(
      model_.parameters[parameter], whole,
      division == division_.parameters.end() ? std::nullopt : std::optional(division->second),
      group_);
}

// Ranks that recorded different operations have chunks of the same sizes, too.
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

#include "pipeline/layers.h"

#include <ATen/core/grad_mode.h>
#include <coupler/error.h>
#include <fmt/format.h>
#include <torch/nn/modules/container/sequential.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <unordered_map>

namespace coupler::pipelining {
namespace {

[[noreturn]] void refuse_layers(const strategy::Model& model, const std::string& what,
                                const std::string& hint) {
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("the chain of layers of '{}': {}", model.name, what),
              {.subject = model.name, .hint = hint});
}

// Appends the module's layers; false if it is itself a layer.
bool expand(torch::nn::Module& module, const std::string& prefix,
            std::vector<PipelineLayer>& into) {
  if (auto* const own = dynamic_cast<PipelineLayers*>(&module)) {
    for (PipelineLayer& layer : own->pipeline_layers()) {
      layer.name = prefix + layer.name;
      into.push_back(std::move(layer));
    }
    return true;
  }
  auto* const sequential = dynamic_cast<torch::nn::SequentialImpl*>(&module);
  if (sequential == nullptr) return false;
  const auto children = sequential->named_children();
  size_t at = 0;
  for (torch::nn::AnyModule& element : *sequential) {
    const std::string name = prefix + children[at++].key();
    if (expand(*element.ptr(), name + ".", into)) continue;
    into.emplace_back(name, PipelineLayer::Modules{element.ptr()},
                      [element](const at::Tensor& x) mutable { return element.forward(x); });
  }
  return true;
}

}  // namespace

std::vector<std::string> LayerList::names() const {
  std::vector<std::string> result;
  for (const LayerEntry& entry : entries) result.push_back(entry.layer.name);
  return result;
}

LayerList layer_list_of(torch::nn::Module& module, const strategy::Model& model) {
  std::vector<PipelineLayer> layers;
  if (!expand(module, "", layers)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("'{}' does not list its layers, so a pipeline cannot split it: C++ "
                            "modules cannot be traced",
                            model.name),
                {.subject = model.name,
                 .hint = "make it a torch::nn::Sequential, or also derive it from "
                         "coupler::PipelineLayers and list its layers "
                         "(coupler/pipeline_layers.h)"});
  }
  std::unordered_map<const void*, size_t> parameters, buffers;
  for (size_t i = 0; i < model.parameters.size(); ++i) {
    parameters[model.parameters[i].tensor.unsafeGetTensorImpl()] = i;
  }
  for (size_t i = 0; i < model.buffers.size(); ++i) {
    buffers[model.buffers[i].second.unsafeGetTensorImpl()] = i;
  }
  LayerList list;
  std::set<std::string> names;
  std::set<size_t> covered;
  for (PipelineLayer& layer : layers) {
    if (layer.name.empty() || !names.insert(layer.name).second) {
      refuse_layers(model, fmt::format("two layers are named '{}', or one has no name", layer.name),
                    "give each layer a unique name");
    }
    if (!layer.one_tensor && !layer.all_tensors) {
      refuse_layers(model, fmt::format("the layer '{}' has no function", layer.name),
                    "give it one that computes its outputs");
    }
    std::set<size_t> own, own_buffers;
    for (const auto& part : layer.modules) {
      if (part == nullptr) {
        refuse_layers(model, fmt::format("the layer '{}' lists a null module", layer.name),
                      "register the module first");
      }
      for (const auto& item : part->named_parameters()) {
        const auto found = parameters.find(item.value().unsafeGetTensorImpl());
        if (found == parameters.end()) {
          refuse_layers(
              model,
              fmt::format("the layer '{}' uses the parameter '{}', which the model does not have",
                          layer.name, item.key()),
              "register the layer's modules with the model");
        }
        own.insert(found->second);
      }
      for (const auto& item : part->named_buffers()) {
        const auto found = buffers.find(item.value().unsafeGetTensorImpl());
        if (found != buffers.end()) own_buffers.insert(found->second);
      }
    }
    covered.insert(own.begin(), own.end());
    list.entries.push_back(
        {std::move(layer), {own.begin(), own.end()}, {own_buffers.begin(), own_buffers.end()}});
  }
  for (size_t i = 0; i < model.parameters.size(); ++i) {
    if (covered.count(i) != 0) continue;
    refuse_layers(model, fmt::format("the parameter '{}' is in no layer", model.parameters[i].name),
                  "list its module in the layer that uses it");
  }
  return list;
}

Values run_layer(const PipelineLayer& layer, const Values& values) {
  if (!layer.one_tensor) return layer.all_tensors(values);
  if (values.size() != 1) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("the layer '{}' takes one tensor, but receives {}", layer.name, values.size()),
        {.subject = layer.name, .hint = "give it a function of a std::vector<at::Tensor>"});
  }
  return {layer.one_tensor(values[0])};
}

namespace {

class EvaluationMode {
 public:
  explicit EvaluationMode(torch::nn::Module& module) : modules_(module.modules()) {
    for (const auto& part : modules_) training_.push_back(part->is_training());
    module.eval();
  }
  ~EvaluationMode() {  // parents come before their children
    for (size_t i = 0; i < modules_.size(); ++i) modules_[i]->train(training_[i]);
  }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  std::vector<std::shared_ptr<torch::nn::Module>> modules_;
  std::vector<bool> training_;
};

}  // namespace

std::vector<double> bytes_of_layers(const LayerList& layers, const strategy::Model& model) {
  std::vector<double> result;
  for (const LayerEntry& entry : layers.entries) {
    double bytes = 0;
    for (const size_t i : entry.parameters) {
      bytes += static_cast<double>(model.parameters[i].tensor.nbytes());
    }
    result.push_back(bytes);
  }
  return result;
}

std::vector<double> seconds_of_layers(const LayerList& layers, const strategy::Model& model,
                                      torch::nn::Module& module, const Values& example) {
  constexpr int kTurns = 4;  // the first of which warms up
  for (const strategy::ModelParameter& parameter : model.parameters) {
    if (!parameter.tensor.is_meta()) continue;
    throw Error(ErrorCode::kUsage,
                fmt::format("cannot time the layers on example_inputs: '{}' is not in memory",
                            parameter.name),
                {.subject = "example_inputs",
                 .hint = "omit it to cut by the parameters' bytes, or name split_points"});
  }
  const at::NoGradGuard no_grad;
  const EvaluationMode evaluation(module);
  std::vector<double> result;
  Values values = example;
  for (const LayerEntry& entry : layers.entries) {
    Values next;
    double least = 0;
    for (int turn = 0; turn < kTurns; ++turn) {
      const auto begin = std::chrono::steady_clock::now();
      next = run_layer(entry.layer, values);
      const double seconds =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      if (turn == 1 || (turn > 1 && seconds < least)) least = seconds;
    }
    values = std::move(next);
    result.push_back(least);
  }
  return result;
}

}  // namespace coupler::pipelining

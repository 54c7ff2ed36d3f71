// LayerList: a model's layers in order, with the parameters and buffers that each uses. Plain data;
// only the training thread may call the layers' functions.
#pragma once

#include <coupler/pipeline_layers.h>

#include <cstddef>
#include <string>
#include <vector>

#include "strategy/model.h"

namespace coupler::pipelining {

using Values = PipelineLayer::Values;

struct LayerEntry {
  PipelineLayer layer;
  std::vector<size_t> parameters, buffers;  // in Model::parameters and Model::buffers
};

struct LayerList {
  std::vector<LayerEntry> entries;
  std::vector<std::string> names() const;
};

// The layers of a Sequential (those inside nested ones and inside elements with PipelineLayers are
// named "outer.inner"), or those listed by the model's own PipelineLayers. Throws
// Error(kInvalidArgument) for any other model, with what to implement; for empty or equal layer
// names; if a layer uses a parameter that the model does not have; if a parameter is in no layer.
LayerList layer_list_of(torch::nn::Module& module, const strategy::Model& model);

// Throws Error(kInvalidArgument) naming the layer if it takes one tensor but gets several.
Values run_layer(const PipelineLayer& layer, const Values& values);

// For the cut into stages: bytes of each layer's parameters; a tied one counts in every layer, as
// it is kept there.
std::vector<double> bytes_of_layers(const LayerList& layers, const strategy::Model& model);

// Likewise: seconds of each layer's forward on one micro-batch, the least of a few runs, in
// evaluation mode, so that no state changes. Throws Error(kUsage) if the model's weights are not in
// memory.
std::vector<double> seconds_of_layers(const LayerList& layers, const strategy::Model& model,
                                      torch::nn::Module& module, const Values& example);

}  // namespace coupler::pipelining

// Chain: a model's layers in order, with the parameters and buffers that each uses. Plain data;
// only the training thread may call the layers' functions.
#pragma once

#include <coupler/pipeline_layers.h>

#include <cstddef>
#include <string>
#include <vector>

#include "strategy/model.h"

namespace coupler {

using Values = PipelineLayer::Values;

struct ChainLink {
  PipelineLayer layer;
  std::vector<size_t> parameters, buffers;  // in Model::parameters and Model::buffers
};

struct Chain {
  std::vector<ChainLink> links;
  std::vector<std::string> names() const;
};

// The layers of a Sequential (those inside nested ones and inside elements with PipelineLayers are
// named "outer.inner"), or those listed by the model's own PipelineLayers. Throws
// Error(kInvalidArgument) for any other model, with what to implement; for empty or equal layer
// names; if a layer uses a parameter that the model does not have; if a parameter is in no layer.
Chain chain_of(torch::nn::Module& module, const Model& model);

// Throws Error(kInvalidArgument) naming the layer if it takes one tensor but gets several.
Values run_layer(const PipelineLayer& layer, const Values& values);

}  // namespace coupler

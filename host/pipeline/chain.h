// Chain: a model's layers in order, with the parameters and buffers that each computes with. Plain
// data; the callables belong to the thread that trains.
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

// The layers of a Sequential (those within nested ones and within elements with PipelineLayers as
// "outer.inner"), or what the model's own PipelineLayers say. Throws Error(kInvalidArgument) for
// any other model, saying what to implement; for layers without or of equal names; where a layer
// uses a parameter that is not the model's; where a parameter is in no layer.
Chain chain_of(torch::nn::Module& module, const Model& model);

// Throws Error(kInvalidArgument) naming the layer where it takes one tensor and gets several.
Values run_layer(const PipelineLayer& layer, const Values& values);

}  // namespace coupler

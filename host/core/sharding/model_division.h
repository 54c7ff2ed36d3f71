// What a tensor-parallel plan divides of a model: which parameters, along which dimension, and how
// the layers that use them are then run. Shared by prepare, which divides tensors, and by
// estimates, which divide sizes. Plain data and a pure function; [any-thread].
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "sharding/division.h"
#include "sharding/tensor_plan.h"

namespace coupler::sharding {

// A model as plans see it.
struct PlannedModel {
  struct Module {
    std::string name, type;  // dotted path, "": the model itself; class, "" if it is not known
  };
  struct Parameter {
    std::string name;
    std::vector<int64_t> sizes;
    bool trains = true;
  };
  std::vector<Module> modules = {};
  std::vector<Parameter> parameters = {};
  // The other names of tied parameters, each with its first name; others may be among them.
  std::vector<std::pair<std::string, std::string>> aliases = {};
};

// How a parameter is divided over the ranks of a tensor group, which keep equal parts of it.
struct ParameterDivision {
  std::vector<int64_t> sizes;  // of the whole parameter
  int64_t dim = 0;             // along which it is divided
  int64_t blocks = 1;          // of the dimension, each of which is divided
  Division elements;

  std::vector<int64_t> part_sizes() const {
    std::vector<int64_t> result = sizes;
    result[static_cast<size_t>(dim)] /= elements.ranks;
    return result;
  }
};

// The layers that use a weight: an embedding and the head of a language model may share one.
struct WeightUse {
  bool transposed = false;   // [in, out], of a product
  std::string name;          // of the layer
  std::string lookup_name;   // of the embedding; empty: none uses it
  std::string product_name;  // of the linear layer; likewise
  std::string product_line;  // of the plan for that layer, for messages
  LayerStyle product;        // of that layer
  bool divided = true;       // the weight; otherwise every rank has all of it
};

// By indices of parameters.
struct ModelDivision {
  std::map<size_t, ParameterDivision> parameters;
  std::map<size_t, WeightUse> weights;
  std::vector<size_t> summed;  // whole ones whose gradients are summed over the group
};

using TensorPlans = std::vector<std::vector<PlannedLayers>>;

// As rank `rank` of a group of `ranks`. plans: the first that names a module counts. Throws
// Error(kConfig) naming module and line if a plan does not fit the model. sequence: whether the
// group also divides the sequence between divided layers. A plan then has to name every module that
// trains parameters of its own: nothing else says whether it sees a part of the sequence, in which
// case its gradients are summed.
ModelDivision divide_model(const PlannedModel& model, const TensorPlans& plans, int ranks, int rank,
                           bool sequence = false);

}  // namespace coupler::sharding

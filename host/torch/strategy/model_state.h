// ModelState: what this rank keeps of one prepared model, whatever its strategy: all of it, shards
// of its parameters or a stage of its layers. Optimizers, loss scaling and checkpoints need no
// more. Used by the training thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "strategy/flat_parameters.h"
#include "strategy/model.h"

namespace coupler::strategy {

// What this rank keeps of one parameter of a model.
struct ParameterPart {
  size_t parameter = 0;         // in Model::parameters
  int64_t begin = 0, end = 0;   // range of its elements, row-major, of those of its division
  at::Tensor values;            // [end - begin], or the whole parameter in its shape
  at::Tensor optimizer_tensor;  // what an optimizer holds for it; undefined for a frozen shard
  int copies = 1, copy = 0;     // number of ranks that keep the same part; this rank's index
  // Which ranks, or stages of each pipeline, those are, if others keep as many copies of other
  // parts.
  std::vector<int> holders = {};
  sharding::Division division = {};  // of the parameter, over a tensor group
};

// Who has written to the parameters.
enum class ParameterWriter : uint8_t {
  kOptimizer,   // each rank's own, in a step
  kCheckpoint,  // loading, which leaves all ranks equal
};

class ModelState {
 public:
  explicit ModelState(Model model) : model_(std::move(model)) {
    for (const ModelParameter& parameter : model_.parameters)
      trained_.push_back(parameter.tensor.requires_grad());
  }
  virtual ~ModelState() = default;
  ModelState(const ModelState&) = delete;
  ModelState& operator=(const ModelState&) = delete;

  const Model& model() const { return model_; }
  // Whether a variable is a parameter of this model, by identity.
  bool has(const at::Tensor& parameter) const {
    return index_of(parameter) < model_.parameters.size();
  }
  // Index in model().parameters; their number if it is not among them.
  size_t index_of(const at::Tensor& parameter) const {
    const auto found =
        std::find_if(model_.parameters.begin(), model_.parameters.end(),
                     [&](const ModelParameter& known) { return known.tensor.is_same(parameter); });
    return static_cast<size_t>(found - model_.parameters.begin());
  }

  // Whether gradients of a parameter are kept: it was not frozen when the model was prepared. The
  // same on every rank.
  bool is_trained(size_t parameter) const { return trained_[parameter]; }

  // The memory that an optimizer updates on this rank.
  FlatParameters& flat() { return flat_; }
  const FlatParameters& flat() const { return flat_; }

  // What this rank keeps of a parameter of model().parameters; none if nothing. Does not know of a
  // tensor group; parts() do.
  virtual std::optional<ParameterPart> part(size_t parameter) = 0;
  // The type of its parts' values. That of the variable is the one operations see.
  virtual at::ScalarType stored_type(size_t parameter) const {
    return model_.parameters[parameter].tensor.scalar_type();
  }
  // All parts, in order of registration.
  std::vector<ParameterPart> parts() {
    std::vector<ParameterPart> result;
    for (size_t i = 0; i < model_.parameters.size(); ++i) {
      auto own = part(i);
      if (!own) continue;
      place_in_tensor_group(i, *own);
      result.push_back(std::move(*own));
    }
    return result;
  }
  // Call after writing to flat() or to the values of parts. Collective.
  virtual void parameters_changed(ParameterWriter writer) = 0;

  // This rank's gradients; all ranks' together are all of this model. In as few tensors as
  // possible, padding of flat memory (zeros) included.
  virtual std::vector<at::Tensor> own_gradients() { return flat_.gradients(); }

  // What this rank carries from step to step in addition to its parameters.
  virtual std::vector<StateTensor> state_tensors() { return {}; }

 private:
  void place_in_tensor_group(size_t parameter, ParameterPart& part) const;

  const Model model_;
  std::vector<bool> trained_;
  FlatParameters flat_;
};

}  // namespace coupler::strategy

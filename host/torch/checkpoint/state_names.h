// The names of a training job's objects in a checkpoint: files, tensors, metadata. Shared by its
// writer and its reader; pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "checkpoint/piece_name.h"
#include "checkpoint/state_piece.h"
#include "strategy/strategy.h"

namespace coupler {
class OptimizerState;
}

namespace coupler::checkpoint {

struct TrainingState;

inline constexpr const char* kOptimizerKey = "coupler.optimizer";
inline constexpr const char* kObjectKey = "coupler.values";
inline constexpr const char* kTorchGenerator = "torch_cpu";
inline constexpr const char* kDeviceGenerator = "torch_device";

inline std::string random_base(int rank) { return "random_states_" + std::to_string(rank); }
inline std::string object_base(size_t index) {
  return "custom_checkpoint_" + std::to_string(index);
}
inline std::string own_buffer_prefix(size_t model) { return numbered("model", model) + "/"; }
inline std::string carried_prefix(size_t model) { return numbered("carried", model) + "/"; }
// The name of a parameter, unique even if several models have one of that name.
inline std::string parameter_name(size_t model, const std::string& name) {
  return model == 0 ? name : numbered("model", model) + "/" + name;
}

// The part of a parameter that this rank's optimizer holds.
struct OptimizerPart {
  std::string name;            // parameter_name
  std::vector<int64_t> shape;  // of the whole parameter
  ParameterPart part;
};
std::vector<OptimizerPart> parts_of(const TrainingState& job, const OptimizerState& optimizer);
StatePiece state_piece(const OptimizerPart& part, const std::string& state, at::Tensor values);

}  // namespace coupler::checkpoint

// A tensor-parallel plan as data: which layers of a model are divided over the ranks of a tensor
// group, and how. It comes from parallel.tensor_plan, from the model itself, or from both, and
// matches the names of modules. Plain data and pure functions; [any-thread].
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace coupler::sharding {

// How a layer is divided. coupler/tensor_parallel.h says what each does, and its words.
enum class TensorStyle {
  kReplicate,
  kColwise,
  kColwiseGather,
  kRowwise,
  kRowwiseSplit,
  kVocab,
  kSumGradients,
  kShared,
  kSequence,  // as kReplicate unless the sequence is divided; likewise
  kGatherSequence,
};

struct LayerStyle {
  TensorStyle style = TensorStyle::kReplicate;
  int64_t blocks = 1;    // of the divided dimension, each of which is divided
  int64_t multiple = 1;  // features that must stay together, such as a head's
  bool operator==(const LayerStyle&) const = default;
};

// One line of a plan.
struct PlannedLayers {
  std::string pattern;  // of modules' names: see name_pattern
  LayerStyle style;
  std::string text;  // for messages: where it is from, and the line
};

// Throws Error(kConfig) naming `where` for an unknown word; those of transformers are known.
LayerStyle layer_style(const std::string& word, const std::string& where);
// The line of parallel.tensor_plan "PATTERN=STYLE". Throws Error(kConfig).
PlannedLayers planned_layers(const std::string& line);

// For each module the line that names it; null: none. Throws Error(kConfig) naming a line that
// matches no module, or two of which one says something else than the other about a module.
std::vector<const PlannedLayers*> match_plan(const std::vector<PlannedLayers>& plan,
                                             const std::vector<std::string>& modules);

}  // namespace coupler::sharding

// Gets the values of a model's tensors from checkpoints and offload folders. Plain functions, one
// thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "big_model/host_value.h"
#include "strategy/model.h"
#include "weights/weight_source.h"

namespace coupler::big_model {

// Maps the name of a checkpoint's tensor to its name in the model; "" skips it. Null: names stay.
using Rename = std::function<std::string(const std::string& name)>;

// Gives a source's tensors the model's names. Throws Error(kIo) naming `where` if two get the same
// name, or if none is left.
void apply_names(const Rename& rename, weights::WeightSource& source, const std::string& where);

// The source's tensor for each of the model's parameters, then buffers; null: it has none, which
// strict forbids. Throws Error(kInvalidArgument) naming `where` and listing every tensor of another
// shape and, if strict, every missing or unexpected one.
std::vector<const weights::WeightTensor*> match_tensors(const strategy::Model& model,
                                                        const weights::WeightSource& source,
                                                        const std::string& where, bool strict);

// Fills in `value` of each tensor, which are the model's parameters, then its buffers. Tensors that
// are not in the checkpoint, which strict forbids, get the model's own value or the constructor's;
// otherwise none. The result is the source of the values and must be kept as long as they are.
// Throws Error(kInvalidArgument) naming `checkpoint` and listing every tensor of another shape and,
// if strict, every missing or unexpected one; Error as open_weights does.
std::shared_ptr<const weights::WeightSource> take_values(const strategy::Model& model,
                                                         std::vector<PlacedTensor>& tensors,
                                                         const std::string& checkpoint, bool strict,
                                                         const Rename& rename);

// Takes the model's own values for tensors that have some; meta tensors get none.
void take_own_values(std::vector<PlacedTensor>& tensors);

// Adds the tensors placed on the disk to an offload folder: values of other dtypes, or from other
// files than safetensors, are written there; the rest are entered by reference. only_foreign leaves
// out tensors that can be used in their file. Their values come from the folder afterwards. Returns
// their source, which must be kept; null if no tensor was added. Throws Error(kInvalidArgument) if
// a folder is needed but not given; Error(kIo).
std::shared_ptr<const weights::WeightSource> offload_to(const std::string& folder,
                                                        std::vector<PlacedTensor>& tensors,
                                                        bool only_foreign);

// Takes values from an offload folder for tensors that have none yet. Others stay unchanged.
std::shared_ptr<const weights::WeightSource> take_offloaded(const std::string& folder,
                                                            std::vector<PlacedTensor>& tensors);

}  // namespace coupler::big_model

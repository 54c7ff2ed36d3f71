// Describes a LibTorch module as a ModuleTree. Nothing may register in the module meanwhile.
#pragma once

#include "placement/module_tree.h"

namespace torch::nn {

class Module;

}  // namespace torch::nn

namespace coupler::big_model {

// Tensors with the same storage, shape and strides are one tensor under several names, even if
// their handles differ: LibTorch ties weights both ways. Throws Error(kInvalidArgument) naming a
// tensor whose dtype is unsupported in device maps.
placement::ModuleTree describe_module(const torch::nn::Module& model);

}  // namespace coupler::big_model

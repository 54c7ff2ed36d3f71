// A LibTorch module as a ModuleTree. Reads the module: nothing may register in it meanwhile.
#pragma once

#include "placement/module_tree.h"

namespace torch::nn {
class Module;
}

namespace coupler {

// Tensors that share storage, shape and strides are one under several names, be they the same
// handle or not: LibTorch ties weights in both ways. Throws Error(kInvalidArgument) naming a tensor
// whose type no device map knows.
ModuleTree describe_module(const torch::nn::Module& model);

}  // namespace coupler

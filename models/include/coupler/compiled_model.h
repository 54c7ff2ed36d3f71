// CompiledModel: a model that PyTorch has compiled ahead of time with AOTInductor, read from its
// .pt2 package, for inference.
//
//   # Python
//   exported = torch.export.export(model.eval(), (images,), dynamic_shapes=({0: Dim("batch")},))
//   torch._inductor.aoti_compile_and_package(exported, package_path="model.pt2")
//
//   // C++
//   coupler::CompiledModel model("model.pt2");
//   at::Tensor logits = model.forward({images})[0];
//
// A package holds machine code, which runs: open only those that you trust. It fits the kind of
// device and of processor that it was compiled for, and this or a newer LibTorch.
//
// Several threads may call forward. All other functions are for one thread, while no forward runs.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace coupler {

// For the constructor of CompiledModel.
struct CompiledModelOptions {
  std::string name = "model";  // which of the package's models
  // How many calls of forward may run at a time; further ones wait. Each takes memory.
  int64_t runners = 1;
  // Of a package for GPUs: which one; -1: the current one.
  int device_index = -1;
};

class CompiledModel {
 public:
  // Extracts the package to the folder for temporary files ($TMPDIR) and loads its code. Throws
  // Error(kIo) naming the file if it cannot be read as a package, Error(kInvalidArgument) for a
  // name that it does not have, Error(kUnsupported) if it was compiled for another device or
  // processor.
  explicit CompiledModel(const std::string& path, const CompiledModelOptions& options = {});
  ~CompiledModel();
  CompiledModel(CompiledModel&&) noexcept;
  CompiledModel& operator=(CompiledModel&&) noexcept;

  // Runs the model without recording gradients. inputs: the tensors that the exported forward
  // takes, in its order, with nested ones flattened; on device(). Returns what it returns,
  // flattened likewise. Throws Error(kInvalidArgument) for inputs of another number, device, dtype
  // or shape than the model was compiled for.
  std::vector<at::Tensor> forward(const std::vector<at::Tensor>& inputs) const;

  // Where inputs must be.
  at::Device device() const;
  // The number of tensors that forward takes.
  size_t num_inputs() const;
  // The weights that load_weights can replace, as in the Python model. Small ones may have become
  // part of the code.
  std::vector<std::string> weight_names() const;
  // Replaces weights by those of a .safetensors file, which has all of weight_names(); it may have
  // others. Throws Error(kInvalidArgument) naming a weight that is missing or differs in shape or
  // dtype, Error(kIo) for a file that cannot be read; the model is then unchanged.
  void load_weights(const std::string& path);
  // What PyTorch and the program that compiled it have noted in the package.
  const std::map<std::string, std::string>& metadata() const;

 private:
  struct Package;
  std::unique_ptr<Package> package_;
};

}  // namespace coupler

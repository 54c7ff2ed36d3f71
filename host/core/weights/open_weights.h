// Opens a model's weights, whichever program saved them. Plain functions, any thread. Nothing in a
// file is executed: see formats/torch_archive.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "weights/weight_source.h"

namespace coupler::weights {

struct OpenWeights {
  size_t model = 0;  // in a checkpoint of several models
  std::string key;   // the dictionary below the root of a torch.save file; "": the root
};

// Accepts a .safetensors file; a .bin, .pt or .pth file written by torch.save; an index of several;
// a folder of these; a checkpoint of Coupler, Accelerate or DeepSpeed (as docs/checkpoints.md lists
// them). Throws Error(kUnsupported) with a hint for known layouts that are not supported, kIo for
// damaged files, kInvalidArgument for options that do not apply.
WeightSource open_weights(const std::string& path, const OpenWeights& options);

// The weights in a safetensors file. Metadata strings that name a tensor of the file are aliases of
// that tensor, as Python's safetensors writes tied weights. Throws Error(kIo) naming the file.
WeightSource open_safetensors(const std::string& path);

// The weights in a file written by torch.save: its state dict, which is the root or the dictionary
// below it that `key` names. Tensors with the same bytes are merged under the first of their names.
// Reading the first tensor verifies the whole file's checksums. Throws Error as TorchArchive does,
// and kInvalidArgument with the possible keys if the state dict is elsewhere.
WeightSource open_torch(const std::string& path, const std::string& key);

// One tensor: the file's root, or the root's value for `key`.
WeightSource open_torch_tensor(const std::string& path, const std::string& key,
                               const std::string& name);

// Passes the elements, of `bytes` each, to the sink in chunks, in row-major order; data already in
// order is not copied. Strides are in elements, none negative, one per dimension; `first` is the
// first element.
void read_row_major(const uint8_t* first, const std::vector<int64_t>& shape,
                    const std::vector<int64_t>& strides, uint64_t bytes, const ByteSink& sink);

// Opens model number `model` of the checkpoint in that folder. Sharded tensors are whole, and reads
// verify the checksums. Throws Error as checkpoint::open_checkpoint; kInvalidArgument if there is
// no such model; kIo naming the tensor if parts of it are in no file, or in two.
WeightSource open_checkpoint_weights(const std::string& folder, size_t model);

// Whether a folder holds a step of a DeepSpeed checkpoint: mp_rank_00_model_states.pt and the like,
// or a universal checkpoint, zero/NAME/fp32.pt.
bool is_deepspeed(const std::string& folder);

// The step's folder that a file `latest` in the folder names, "" if there is no such file. Throws
// Error(kIo) if it does not name a folder.
std::string deepspeed_latest(const std::string& folder);

// Opens the folder of one step: the dictionary `key` of its file, "module" if `key` is ""; of a
// universal checkpoint the parameters in fp32, and the tensors that only the model states file next
// to them has, such as buffers. Throws Error(kUnsupported) for weights divided among several files;
// the hint names the tool that joins them.
WeightSource open_deepspeed(const std::string& folder, const std::string& key);

}  // namespace coupler::weights

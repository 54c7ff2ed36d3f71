// Makes values for models built inside EmptyWeights: runs what their constructors recorded, one
// tensor after another. Any thread, one at a time; meanwhile no other thread may draw from the
// default generator (building inside EmptyWeights does not draw).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <unordered_set>
#include <vector>

#include "empty_weights/replay.h"

namespace coupler::empty_weights {

struct MetaTensor {
  std::string name;  // for messages
  at::Tensor tensor;
};

// Receives the tensor's value: bit for bit what an eager constructor would have produced.
using ValueSink = std::function<void(size_t index, at::Tensor value)>;

// Wanted tensors whose values come in chunks, so that they need not be in memory whole. They are
// where only uniform_, normal_, fill_ and zero_ gave them their values (fill_in_chunks.h).
struct InChunks {
  std::unordered_set<size_t> indices;  // of tensors on meta
  // Gets all elements of a tensor, row-major, one chunk after another; `begin` is the number of the
  // chunk's first. The sink may change a chunk, whose memory is reused; tied tensors share theirs.
  // Tensors without elements have none.
  std::function<void(size_t index, int64_t begin, const at::Tensor& chunk)> sink;
  size_t bytes = kChunkBytes;
};

// Passes the value of each wanted tensor to `sink` exactly once, as soon as it is ready. A value
// takes memory from its last initialization to the sink, which may keep it (tied tensors share
// theirs) and may call put_value. Undefined tensors and those not on meta go to the sink first, as
// they are. Only what the wanted tensors need is run: their operations, and earlier random ones
// that have not run yet.
//
// Throws coupler::Error naming the tensor if it has no recording or was changed in place outside
// the scope; then nothing has run. An error from the sink ends the replay.
ReplayReport materialize(const std::vector<MetaTensor>& wanted, const ValueSink& sink,
                         const InChunks& in_chunks = {});

// Throws as materialize does if one of these tensors cannot get its value.
void require_recordings(const std::vector<MetaTensor>& wanted);

// For each tensor, whether materialize, asked for all of them, can give it its value in chunks
// without having it whole. Tensors that share a storage are made whole.
std::vector<bool> never_whole(const std::vector<at::Tensor>& tensors);

// Whether the tensor is on meta and was made inside EmptyWeights.
bool has_recording(const at::Tensor& tensor);

// Makes a meta parameter or buffer real, whatever created it: puts `value`'s memory under the same
// TensorImpl, so that modules, optimizers and tied handles see it. requires_grad and leaf-ness
// stay. `value` needs the same shape; its dtype and device become the tensor's.
void put_value(const at::Tensor& meta, const at::Tensor& value);

// The same for a tensor that may already have values; it loses them.
void give_value(const at::Tensor& variable, const at::Tensor& value);

// Calls at::Tensor::set_data, or give_value if the device differs, which set_data may refuse.
void set_value(const at::Tensor& variable, const at::Tensor& value);

}  // namespace coupler::empty_weights

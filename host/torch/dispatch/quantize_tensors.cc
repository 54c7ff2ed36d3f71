#include "dispatch/quantize_tensors.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/mapping_guard.h"
#include "dispatch/packed_file.h"
#include "quantize/choose_layers.h"
#include "quantize/packed_weight.h"

namespace coupler {
namespace {

// The values to pack, on the CPU. If the checkpoint has another dtype, they are read as float, so
// that nothing is rounded twice.
at::Tensor values_of(const PlacedTensor& tensor) {
  if (tensor.value.tensor.defined()) return tensor.value.tensor.cpu();
  const at::Tensor values = at::empty(tensor.variable.sizes(), at::kFloat);
  copy_value(tensor.value, values);
  return values;
}

at::Tensor pack_one(const PlacedTensor& tensor, QuantizedLayer& layer) {
  auto [packed, error] =
      pack(tensor.packed->layout(), values_of(tensor), tensor.packed->transposed(), tensor.name);
  layer.relative_error = error.relative();
  layer.max_error = error.most;
  // The pages read from a mapped checkpoint are not needed again.
  const FilePlace& place = tensor.value.place;
  if (place.file != nullptr) drop(*place.file, place.begin, tensor.value.tensor.nbytes());
  return packed;
}

PackedFile file_of(const std::string& folder, const std::vector<const PlacedTensor*>& weights,
                   bool& reused) {
  if (folder.empty())
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("the device map puts the quantized weight '{}' on the disk, but "
                            "offload_folder is not set",
                            weights[0]->name),
                {.subject = "offload_folder",
                 .hint = "name a folder on a local disk with room for the quantized weights; they "
                         "are written there once"});
  const std::string fingerprint = fingerprint_of(weights);
  auto file = open_packed_file(folder, fingerprint, weights);
  reused = file.has_value();
  if (reused) return *std::move(file);
  return write_packed_file(folder, fingerprint, weights, &pack_one);
}

void finish(const PlacedTensor& tensor, QuantizedLayer& layer) {
  layer.bytes_before =
      static_cast<uint64_t>(tensor.variable.numel()) * c10::elementSize(tensor.type);
  layer.bytes_after = tensor.packed->bytes();
}

}  // namespace

void choose_packed(const Model& model, const QuantizeOptions& options,
                   std::vector<PlacedTensor>& tensors) {
  // Parameters come first, in the model's order.
  for (const ChosenLayer& layer : choose_layers(model, options)) {
    PlacedTensor& tensor = tensors.at(layer.parameter);
    tensor.packed = std::make_shared<PackedWeight>(layer.layout, layer.transposed, tensor.type);
  }
}

std::shared_ptr<const WeightSource> pack_tensors(const QuantizeOptions& options,
                                                 const std::string& offload_folder,
                                                 std::vector<PlacedTensor>& tensors) {
  const at::NoGradGuard no_grad;
  QuantizationReport report{.bits = options.bits,
                            .group_size = options.bits == 4 ? options.group_size : 0,
                            .layers = {},
                            .reused = false};
  std::vector<const PlacedTensor*> on_disk;
  for (const PlacedTensor& tensor : tensors) {
    if (tensor.packed != nullptr && tensor.lies.is_disk()) on_disk.push_back(&tensor);
  }
  PackedFile file;
  if (!on_disk.empty()) file = file_of(offload_folder, on_disk, report.reused);
  for (PlacedTensor& tensor : tensors) {
    if (tensor.packed == nullptr) continue;
    QuantizedLayer layer{.name = tensor.name};
    if (tensor.lies.is_disk()) {
      layer = file.layers.at(tensor.name);
      const auto weight =
          std::find_if(file.source->tensors.begin(), file.source->tensors.end(),
                       [&](const WeightTensor& stored) { return stored.name == tensor.name; });
      tensor.value = host_value(*weight, at::kByte);
    } else {
      tensor.value = host_value(pack_one(tensor, layer));
    }
    finish(tensor, layer);
    report.layers.push_back(std::move(layer));
  }
  for (const PlacedTensor& tensor : tensors) {
    if (!tensor.buffer) tensor.variable.set_requires_grad(false);
  }
  std::stable_sort(report.layers.begin(), report.layers.end(),
                   [](const QuantizedLayer& a, const QuantizedLayer& b) {
                     return a.relative_error > b.relative_error;
                   });
  if (options.report) options.report(report);
  return file.source;
}

}  // namespace coupler

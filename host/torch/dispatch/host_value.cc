#include "dispatch/host_value.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/file_text.h"
#include "base/mapping_guard.h"
#include "dispatch/staged_copy.h"
#include "tensors/safetensors_types.h"

namespace coupler {
namespace {

// In LibTorch, other bytes than 0 and 1 are neither true nor false.
void check_booleans(const WeightTensor& weight) {
  weight.read([&](const char* bytes, size_t size) {
    const char* const wrong =
        std::find_if(bytes, bytes + size, [](char byte) { return byte != 0 && byte != 1; });
    if (wrong == bytes + size) return;
    throw Error(ErrorCode::kIo,
                fmt::format("boolean tensor '{}' contains the byte {}, which is neither 0 nor 1",
                            shown(weight.name), static_cast<int>(static_cast<uint8_t>(*wrong))),
                {.subject = weight.name, .hint = "the checkpoint is damaged; copy it again"});
  });
}

}  // namespace

HostValue host_value(const at::Tensor& tensor) {
  return {tensor.detach().contiguous(), {}, nullptr};
}

HostValue host_value(const WeightTensor& weight, at::ScalarType type) {
  const at::ScalarType stored = safetensors::scalar_type(weight.dtype, weight.name);
  if (stored == at::kBool) check_booleans(weight);
  const auto& file = weight.place.file;
  const bool empty = weight.bytes() == 0;
  const auto element = static_cast<uintptr_t>(c10::elementSize(stored));
  uint8_t* const data = file == nullptr ? nullptr : file->data() + weight.place.begin;
  const bool aligned = reinterpret_cast<uintptr_t>(data) % element == 0;
  if (stored != type || (!empty && (data == nullptr || !aligned))) return {{}, {}, &weight};
  if (empty) return {at::empty(weight.shape, type), {}, &weight};
  if (weight.verify) weight.verify();
  return {at::from_blob(
              data, weight.shape, [keep = guard_mapping(file)](void*) {}, at::TensorOptions(type)),
          weight.place, &weight};
}

void copy_value(const HostValue& value, const at::Tensor& destination, bool drop_pages) {
  const at::NoGradGuard no_grad;
  const at::Tensor flat = destination.view(-1);
  if (value.tensor.defined()) {
    staged_copy(value.tensor.view(-1), flat);
    if (drop_pages && value.place.file != nullptr)
      drop(*value.place.file, value.place.begin, value.tensor.nbytes());
    return;
  }
  const WeightTensor& weight = *value.weight;
  const at::ScalarType stored = safetensors::scalar_type(weight.dtype, weight.name);
  const auto element = static_cast<int64_t>(c10::elementSize(stored));
  const FilePlace& place = weight.place;
  int64_t at = 0;
  uint64_t read = 0;
  // Chunks contain whole elements: their size is a multiple of every element size.
  weight.read([&](const char* bytes, size_t size) {
    const int64_t count = static_cast<int64_t>(size) / element;
    const at::Tensor chunk =
        at::from_blob(const_cast<char*>(bytes), {count}, at::TensorOptions(stored));
    flat.slice(0, at, at + count).copy_(chunk);
    at += count;
    read += size;
    // From the beginning, since the previous chunk may share a page with this one.
    if (drop_pages && place.file != nullptr) drop(*place.file, place.begin, read);
  });
}

}  // namespace coupler

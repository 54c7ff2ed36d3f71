#include "empty_weights/empty_weights.h"

#include <c10/core/InferenceMode.h>
#include <coupler/empty_weights.h>
#include <coupler/error.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "empty_weights/fill_in_chunks.h"
#include "empty_weights/recorder.h"
#include "empty_weights/replay.h"

namespace coupler {
namespace {

// Comes before every other dispatch key, so operations arrive as the program calls them. It is on
// only in threads that have a scope.
constexpr c10::DispatchKey kRecordingKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

thread_local std::optional<c10::Device> init_device;  // of the innermost InitOnDevice

// Sets the device of an operation that creates a tensor from no other and names no device.
void set_device(const c10::OperatorHandle& op, torch::jit::Stack& stack, c10::Device device) {
  const std::vector<c10::Argument>& arguments = op.schema().arguments();
  const size_t first = stack.size() - arguments.size();
  std::optional<size_t> geometry;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = stack[first + i];
    if (value.isTensor() || value.isTensorList()) return;
    if (arguments[i].name() == "device" && value.isNone()) geometry = first + i;
  }
  if (geometry) stack[*geometry] = device;
}

void record_operation(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard off(empty_weights::recording_keys());
  empty_weights::Recorder& recorder = empty_weights::Recorder::of_this_thread();
  if (recorder.active()) {
    recorder.call(op, *stack);
    return;
  }
  // init_device is unset in LibTorch's own threads, to which it passes thread-local keys.
  if (init_device) set_device(op, *stack, *init_device);
  op.callBoxed(stack);
}

void include_key() {
  c10::impl::tls_set_dispatch_key_included(
      kRecordingKey, empty_weights::Recorder::of_this_thread().active() || init_device.has_value());
}

}  // namespace

EmptyWeights::EmptyWeights(const EmptyWeightsOptions& options) {
  empty_weights::Recorder::of_this_thread().enter(options.include_buffers);
  include_key();
}

EmptyWeights::~EmptyWeights() {
  // Buffers are materialized in leave(), which must not be recorded again.
  c10::impl::tls_set_dispatch_key_included(kRecordingKey, false);
  empty_weights::Recorder::of_this_thread().leave();
  include_key();
}

InitOnDevice::InitOnDevice(c10::Device device, const EmptyWeightsOptions& options)
    : before_(init_device) {
  if (device.is_meta()) {
    empty_.emplace(options);
  } else {
    init_device = device;
  }
  include_key();
}

InitOnDevice::~InitOnDevice() {
  if (!empty_) init_device = before_;
  include_key();
}

}  // namespace coupler

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&coupler::record_operation>());
}

namespace coupler::empty_weights {
namespace {

// The wanted tensors of one recording, by storage: tied tensors share one.
struct Batch {
  std::shared_ptr<Recording> recording;
  std::unordered_map<uint64_t, std::vector<size_t>> indices;
};

void require_recording(const MetaTensor& wanted) {
  const StorageTag* const tag = Recording::tag_of(wanted.tensor);
  if (tag == nullptr) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("'{}' is on the meta device and its values are unknown", wanted.name),
        {.subject = wanted.name,
         .hint = "build the model inside coupler::EmptyWeights, conversions included, or load its "
                 "weights from a file"});
  }
  if (!tag->recording->unchanged(wanted.tensor)) {
    throw Error(ErrorCode::kUsage,
                fmt::format("'{}' was changed in place outside coupler::EmptyWeights before it had "
                            "values, and that change is lost",
                            wanted.name),
                {.subject = wanted.name,
                 .hint = "initialize it inside the scope, or after it is materialized"});
  }
}

at::Tensor make(const c10::Storage& storage, const TensorGeometry& geometry) {
  const c10::InferenceMode no_inference(false);
  return tensor_on(storage, geometry, c10::DispatchKey::CPU);
}

std::string text(c10::IntArrayRef sizes) {
  std::ostringstream out;
  out << sizes;
  return out.str();
}

}  // namespace

void require_recordings(const std::vector<MetaTensor>& wanted) {
  for (const MetaTensor& each : wanted) {
    if (each.tensor.defined() && each.tensor.is_meta()) require_recording(each);
  }
}

bool has_recording(const at::Tensor& tensor) { return Recording::tag_of(tensor) != nullptr; }

ReplayReport materialize(const std::vector<MetaTensor>& wanted, const ValueSink& sink,
                         const InChunks& in_chunks) {
  require_recordings(wanted);
  std::vector<Batch> batches;
  std::vector<TensorGeometry> geometries(wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    const at::Tensor& tensor = wanted[i].tensor;
    if (!tensor.defined() || !tensor.is_meta()) continue;
    const StorageTag& tag = *Recording::tag_of(tensor);
    auto batch = std::find_if(batches.begin(), batches.end(),
                              [&](const Batch& b) { return b.recording == tag.recording; });
    if (batch == batches.end()) batch = batches.insert(batch, Batch{tag.recording, {}});
    batch->indices[tag.id].push_back(i);
    geometries[i] = geometry_of(tensor);
  }
  for (size_t i = 0; i < wanted.size(); ++i) {
    const at::Tensor& tensor = wanted[i].tensor;
    if (!tensor.defined() || !tensor.is_meta()) sink(i, tensor);
  }
  const auto give = [&](size_t i, at::Tensor value) {
    if (!in_chunks.indices.contains(i)) return sink(i, std::move(value));
    const at::Tensor flat = value.contiguous().view(-1);
    const Chunks chunks(flat.numel(), flat.itemsize(), in_chunks.bytes);
    chunks.each([&](int64_t begin, int64_t count) {
      in_chunks.sink(i, begin, flat.narrow(0, begin, count));
    });
  };
  ReplayReport total;
  for (const Batch& batch : batches) {
    std::unordered_set<uint64_t> storages;
    StoragesInChunks chunks{.types = {},
                            .sink =
                                [&](uint64_t storage, int64_t begin, const at::Tensor& chunk) {
                                  in_chunks.sink(batch.indices.at(storage).front(), begin, chunk);
                                },
                            .bytes = in_chunks.bytes};
    for (const auto& [storage, indices] : batch.indices) {
      storages.insert(storage);
      const size_t first = indices.front();
      if (indices.size() == 1 && in_chunks.indices.contains(first) &&
          is_whole_storage(geometries[first]))
        chunks.types.emplace(storage, geometries[first].dtype);
    }
    const ReplayReport report = replay(
        batch.recording, storages,
        [&](uint64_t storage, const c10::Storage& value) {
          for (const size_t i : batch.indices.at(storage)) give(i, make(value, geometries[i]));
        },
        chunks);
    total.operations += report.operations;
    total.peak_bytes = std::max(total.peak_bytes, report.peak_bytes);
  }
  return total;
}

std::vector<bool> never_whole(const std::vector<at::Tensor>& tensors) {
  std::unordered_map<Recording*, std::unordered_map<uint64_t, at::ScalarType>> storages;
  std::map<std::pair<const Recording*, uint64_t>, size_t> users;  // of each storage
  for (const at::Tensor& tensor : tensors) {
    const StorageTag* const tag = Recording::tag_of(tensor);
    if (tag == nullptr) continue;
    ++users[{tag->recording.get(), tag->id}];
    if (is_whole_storage(geometry_of(tensor)))
      storages[tag->recording.get()].emplace(tag->id, tensor.scalar_type());
  }
  std::unordered_map<const Recording*, ChunkedFills> fills;
  for (const auto& [recording, types] : storages) {
    const auto lock = recording->lock();
    fills.emplace(recording, chunked_fills(recording->operations(), types));
  }
  std::vector<bool> result;
  for (const at::Tensor& tensor : tensors) {
    const StorageTag* const tag = Recording::tag_of(tensor);
    const auto found = tag == nullptr ? fills.end() : fills.find(tag->recording.get());
    result.push_back(found != fills.end() && found->second.contains(tag->id) &&
                     users.at({tag->recording.get(), tag->id}) == 1);
  }
  return result;
}

void put_value(const at::Tensor& meta, const at::Tensor& value) {
  if (!meta.is_meta() || !value.defined() || value.is_meta() || value.is_inference() ||
      value.layout() != meta.layout() || value.sizes() != meta.sizes()) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("a tensor of shape {} on {} cannot take the place of one of shape {} on {}",
                    value.defined() ? text(value.sizes()) : "(undefined)",
                    value.defined() ? value.device().str() : "no device", text(meta.sizes()),
                    meta.device().str()),
        {.subject = {}, .hint = "give a tensor of the same shape that has values"});
  }
  if (meta.requires_grad() && !value.is_floating_point() && !value.is_complex()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("a parameter that requires gradients cannot be of dtype {}",
                            c10::toString(value.scalar_type())),
                {.subject = {}, .hint = "give a floating-point tensor"});
  }
  give_value(meta, value);
}

void give_value(const at::Tensor& variable, const at::Tensor& value) {
  // A gradient accumulator made while the tensor was on meta would refuse real gradients.
  if (auto* const autograd = torch::autograd::impl::get_autograd_meta(variable)) {
    const std::lock_guard lock(autograd->mutex_);
    autograd->grad_accumulator_.reset();
  }
  variable.unsafeGetTensorImpl()->shallow_copy_from(value.getIntrusivePtr());
}

void set_value(const at::Tensor& variable, const at::Tensor& value) {
  variable.device() == value.device() ? variable.set_data(value) : give_value(variable, value);
}

}  // namespace coupler::empty_weights

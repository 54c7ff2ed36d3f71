#include "empty_weights/recorder.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <coupler/error.h>
#include <fmt/format.h>

#include <cstring>
#include <mutex>
#include <string>
#include <utility>

#include "base/log.h"
#include "empty_weights/empty_weights.h"
#include "empty_weights/recording.h"
#include "empty_weights/replay.h"

namespace coupler::empty_weights {
namespace {

using Kind = CallTensor::Kind;
using Stack = std::vector<c10::IValue>;

// Tensors from at::empty up to this size get memory for their data pointer, since torch::tensor
// of a list writes through it. The memory is not touched unless something is written.
constexpr size_t kMaxRawContent = size_t{64} << 10;

bool not_implemented(const std::exception_ptr& error) {
  if (!error) return false;
  try {
    std::rethrow_exception(error);
  } catch (const c10::NotImplementedError&) {
    return true;
  } catch (...) {
    return false;
  }
}

[[noreturn]] void refuse_to_record(const RecordedCall& call, const std::string& what,
                                   const char* hint) {
  throw Error(ErrorCode::kUnsupported, fmt::format("'{}' {}", call.name(), what),
              {.subject = call.name(), .hint = hint});
}

std::shared_ptr<RawContent> raw_content_for(const RecordedCall& call,
                                            const TensorGeometry& geometry) {
  if (call.name() != "aten::empty" || geometry.bytes == 0 || geometry.bytes > kMaxRawContent)
    return nullptr;
  return std::make_shared<RawContent>(
      RawContent{std::make_unique_for_overwrite<char[]>(geometry.bytes)});
}

at::Tensor zeros_on(const TensorGeometry& geometry) {
  const c10::Storage storage(c10::Storage::use_byte_size_t(), geometry.bytes,
                             c10::GetCPUAllocator(), true);
  std::memset(storage.mutable_data(), 0, geometry.bytes);
  return tensor_on(storage, geometry, c10::DispatchKey::CPU);
}

}  // namespace

Recorder& Recorder::of_this_thread() {
  static thread_local Recorder recorder;
  return recorder;
}

void Recorder::enter(bool include_buffers) {
  if (depth_++ > 0) return;
  include_buffers_ = include_buffers;
  if (!recording_) recording_ = std::make_shared<Recording>();
  use_ = std::make_unique<Recording::Use>(recording_);
}

void Recorder::leave() {
  if (--depth_ > 0) return;
  for (const auto& [impl, tensor] : touched_) recording_->remember_version(tensor);
  if (!include_buffers_) materialize_buffers();
  touched_.clear();
  for (const auto& content : overwritten_) content->bytes.reset();
  overwritten_.clear();
  use_.reset();
}

// Buffers are the live tensors that require no gradient. A destructor ends the scope, so a failure
// is only logged; using the buffer reports it.
void Recorder::materialize_buffers() const {
  std::vector<MetaTensor> wanted;
  for (const auto& [impl, weak] : touched_) {
    if (auto alive = weak.lock()) {
      at::Tensor tensor(std::move(alive));
      if (tensor.is_meta() && !tensor.requires_grad() && has_recording(tensor))
        wanted.push_back({"a buffer", std::move(tensor)});
    }
  }
  try {
    materialize(wanted, [&](size_t index, const at::Tensor& value) {
      put_value(wanted[index].tensor, value);
    });
  } catch (const std::exception& error) {
    log(LogLevel::kWarning, "empty weights",
        fmt::format("buffers remain without values: {}", error.what()));
  }
}

void Recorder::call(const c10::OperatorHandle& op, Stack& stack) {
  const auto first = stack.end() - static_cast<std::ptrdiff_t>(op.schema().arguments().size());
  RecordedCall call(op, Stack(first, stack.end()));
  if (call.takes_storage()) return op.callBoxed(stack);
  if (call.has(Kind::kUnknown)) {
    if (call.writes(Kind::kRecorded))
      refuse_to_record(call, "writes a meta tensor, which has no values, into a weight",
                       "give it a tensor that has values or was made inside coupler::EmptyWeights");
    return op.callBoxed(stack);
  }
  if (!call.has(Kind::kRecorded)) {
    // An operation on outside tensors only runs for real, unless it makes a new tensor.
    if (call.random() && call.writes(Kind::kReal))
      refuse_to_record(
          call,
          "draws random numbers into a tensor from outside coupler::EmptyWeights, which would "
          "take them from the weights",
          "do that before or after the scope");
    if (call.has(Kind::kForeign) || call.writes(Kind::kReal) || !call.gives_tensors())
      return op.callBoxed(stack);
  }
  call.require_replayable();
  touch(call);

  std::unique_lock<std::recursive_mutex> generator;
  std::optional<GeneratorState> found;
  if (call.random()) {
    generator = exclude_replays();
    found = read_generator();
  }
  Stack results;
  if (call.writes(Kind::kReal)) {
    run_for_values(call, results, nullptr);
  } else {
    if (const auto why = run_on_meta(call, results)) run_for_values(call, results, why);
    record(call, results, found);
  }
  stack.erase(first, stack.end());
  stack.insert(stack.end(), std::make_move_iterator(results.begin()),
               std::make_move_iterator(results.end()));
}

// All changes within this scope are recorded; changes made since an earlier scope are lost.
void Recorder::touch(const RecordedCall& call) {
  for (const CallTensor& item : call.tensors()) {
    if (item.kind != Kind::kRecorded) continue;
    if (Recording::tag_of(item.tensor)->recording != recording_)
      refuse_to_record(call, "uses a weight that another thread built inside coupler::EmptyWeights",
                       "build both on one thread, or materialize that weight first");
    if (touched_.contains(item.tensor.unsafeGetTensorImpl())) continue;
    if (!recording_->unchanged(item.tensor))
      refuse_to_record(
          call,
          "uses a weight that was changed in place outside coupler::EmptyWeights before it "
          "had values, and that change is lost",
          "initialize it inside the scope, or after it is materialized");
    touched_.emplace(item.tensor.unsafeGetTensorImpl(), item.tensor.getIntrusivePtr());
  }
}

std::exception_ptr Recorder::run_on_meta(RecordedCall& call, Stack& results) {
  try {
    results = call.meta_arguments();
    call.op().callBoxed(results);
    return nullptr;
  } catch (const c10::Error&) {
    return std::current_exception();
  }
}

void Recorder::run_for_values(const RecordedCall& call, Stack& results,
                              const std::exception_ptr& why) {
  if (call.returns_recorded_input()) {
    if (!not_implemented(why)) std::rethrow_exception(why);
    refuse_to_record(
        call, "cannot run on a weight inside coupler::EmptyWeights, since it needs values",
        "use another operation (masked_fill_ for a boolean index), or do it after materializing");
  }
  results = call.arguments();
  for (const CallTensor& item : call.tensors()) {
    if (item.kind != Kind::kRecorded) continue;
    std::optional<at::Tensor> value = value_of(item.tensor);
    // If there is no meta kernel (convolutions), the real one yields the shapes, from any values.
    if (!value && not_implemented(why) && call.shapes_without_values())
      value = zeros_on(item.geometry);
    if (!value) {
      if (why && !not_implemented(why)) std::rethrow_exception(why);
      refuse_to_record(
          call,
          "needs the values of a randomly drawn tensor, which has none yet inside "
          "coupler::EmptyWeights",
          "use tensor operations throughout (w.div_(w.norm()) for w.norm().item()), or do it "
          "outside the scope");
    }
    put(results, item.position, *value);
  }
  {
    const at::NoGradGuard no_grad;
    const GeneratorGuard generator;
    call.op().callBoxed(results);
  }
  if (call.writes(Kind::kReal)) return;
  // Of new tensors, only the geometry is needed.
  Stack real = results;
  for_each_tensor(real, [&](Position position, const at::Tensor& tensor) {
    TensorGeometry geometry = geometry_of(tensor);
    const c10::Storage meta(c10::Storage::use_byte_size_t(), geometry.bytes,
                            c10::GetAllocator(c10::kMeta), true);
    put(results, position, tensor_on(meta, geometry, c10::DispatchKey::Meta));
  });
}

void Recorder::record(const RecordedCall& call, Stack& results,
                      const std::optional<GeneratorState>& found) {
  RecordedOperation operation = call.operation();
  bool views_of_real = false;
  const Stack made = results;
  for_each_tensor(made, [&](Position position, const at::Tensor& tensor) {
    if (!tensor.is_meta()) return;
    if (tensor.layout() != c10::kStrided || !tensor.has_storage())
      refuse_to_record(
          call, "makes a tensor that is not dense, which coupler::EmptyWeights cannot record",
          "make it after materializing");
    if (const c10::Storage real = call.real_storage_of(tensor)) {
      views_of_real = true;
      put(results, position, tensor_on(real, geometry_of(tensor), c10::DispatchKey::CPU));
      return;
    }
    if (Recording::tag_of(tensor) == nullptr) {
      TensorGeometry geometry = geometry_of(tensor);
      operation.content = raw_content_for(call, geometry);
      geometry.storage = recording_->adopt(tensor, operation.content);
      operation.outputs.push_back({position, std::move(geometry)});
    }
    touched_.try_emplace(tensor.unsafeGetTensorImpl(), tensor.getIntrusivePtr());
  });
  if (operation.outputs.empty() && !call.writes(Kind::kRecorded)) {
    if (views_of_real && !call.has(Kind::kRecorded)) {
      results = call.arguments();
      call.op().callBoxed(results);  // for real, so that autograd knows it as a view
    }
    return;
  }
  for (size_t i = 0; i < call.tensors().size(); ++i) {
    auto content = Recording::close_data(call.tensors()[i].tensor);
    if (content && operation.inputs[i].covers) overwritten_.push_back(std::move(content));
  }
  recording_->append(std::move(operation), found);
}

}  // namespace coupler::empty_weights

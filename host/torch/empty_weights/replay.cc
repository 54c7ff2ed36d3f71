#include "empty_weights/replay.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/ScalarType.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "empty_weights/fill_in_chunks.h"
#include "empty_weights/recording.h"

namespace coupler::empty_weights {
namespace {

bool writes_any(const RecordedOperation& operation, const std::unordered_set<uint64_t>& storages) {
  return std::any_of(
             operation.outputs.begin(), operation.outputs.end(),
             [&](const RecordedOutput& out) { return storages.contains(out.geometry.storage); }) ||
         std::any_of(operation.inputs.begin(), operation.inputs.end(),
                     [&](const RecordedInput& in) {
                       return in.writes && storages.contains(in.geometry.storage);
                     });
}

}  // namespace

std::set<uint64_t> touched_by(const RecordedOperation& operation) {
  std::set<uint64_t> result;
  for (const RecordedOutput& out : operation.outputs) result.insert(out.geometry.storage);
  for (const RecordedInput& in : operation.inputs) {
    if (!in.constant.defined()) result.insert(in.geometry.storage);
  }
  return result;
}

// Walks backward with the set of storages whose contents are needed later (`live`). An operation
// that overwrites a whole storage ends the life before it: a weight that is initialized twice needs
// no memory between the first time and the second.
std::vector<ReplayStep> plan_replay(const std::deque<RecordedOperation>& operations,
                                    std::unordered_set<uint64_t> wanted, bool stream_end) {
  std::vector<ReplayStep> steps;
  std::unordered_set<uint64_t> live = wanted;
  bool draw = stream_end;  // the generator's state is needed later
  for (size_t i = operations.size(); i-- > 0;) {
    const RecordedOperation& operation = operations[i];
    const bool needed = writes_any(operation, live);
    if (!needed && !(operation.random && draw)) continue;
    ReplayStep step{.operation = i};
    if (!needed && operation.after) {
      step.skip_draw = true;
      draw = false;
      steps.push_back(std::move(step));
      continue;
    }
    if (operation.random) draw = !operation.before;
    for (const uint64_t storage : touched_by(operation)) {
      if (wanted.erase(storage) != 0) {
        step.finished.push_back(storage);
        step.dead.push_back(storage);
      } else if (!live.contains(storage)) {
        step.dead.push_back(storage);
      }
    }
    for (const RecordedOutput& out : operation.outputs) live.erase(out.geometry.storage);
    for (const RecordedInput& in : operation.inputs) {
      if (in.covers) live.erase(in.geometry.storage);
    }
    for (const RecordedInput& in : operation.inputs) {
      if (in.reads && !in.constant.defined()) live.insert(in.geometry.storage);
    }
    steps.push_back(std::move(step));
  }
  std::reverse(steps.begin(), steps.end());
  return steps;
}

namespace {

// Sets the thread's modes as at the start of a program, with gradients off.
struct NeutralModes {
  c10::InferenceMode no_inference{false};
  at::NoGradGuard no_grad;
  c10::impl::ExcludeDispatchKeyGuard no_keys{recording_keys()};
};

// LibTorch's default dtype is process-wide, so it is changed only if it differs.
class DefaultDtypeGuard {
 public:
  explicit DefaultDtypeGuard(at::ScalarType dtype) : before_(c10::get_default_dtype()) {
    if (c10::typeMetaToScalarType(before_) != dtype)
      c10::set_default_dtype(c10::scalarTypeToTypeMeta(dtype));
  }
  ~DefaultDtypeGuard() {
    if (c10::get_default_dtype() != before_) c10::set_default_dtype(before_);
  }
  DefaultDtypeGuard(const DefaultDtypeGuard&) = delete;
  DefaultDtypeGuard& operator=(const DefaultDtypeGuard&) = delete;

 private:
  caffe2::TypeMeta before_;
};

class Replay {
 public:
  Replay(Recording& recording, const StorageSink& sink, const StoragesInChunks& chunks)
      : recording_(recording), sink_(sink), chunks_(chunks) {}

  ReplayReport run(const std::vector<ReplayStep>& steps) {
    const auto one_at_a_time = exclude_replays();
    for (const ReplayStep& step : steps) {
      if (step.in_chunks) {
        execute_in_chunks(step);
        continue;
      }
      execute(step);
      for (const uint64_t id : step.dead) {
        if (std::find(step.finished.begin(), step.finished.end(), id) == step.finished.end())
          release(id);
      }
      for (const uint64_t id : step.finished) {
        c10::Storage value = memory_.at(id);
        release(id);
        sink_(id, value);
      }
    }
    return report_;
  }

 private:
  RecordedOperation& at(size_t index) {
    const auto lock = recording_.lock();
    return recording_.operations()[index];
  }

  const c10::Storage& memory_for(const TensorGeometry& geometry) {
    const auto found = memory_.find(geometry.storage);
    if (found != memory_.end()) return found->second;
    return hold(geometry.storage, c10::Storage(c10::Storage::use_byte_size_t(), geometry.bytes,
                                               c10::GetCPUAllocator(), true));
  }

  const c10::Storage& hold(uint64_t id, c10::Storage storage) {
    bytes_ += storage.nbytes();
    report_.peak_bytes = std::max(report_.peak_bytes, bytes_);
    return memory_.insert_or_assign(id, std::move(storage)).first->second;
  }

  void release(uint64_t id) {
    const auto found = memory_.find(id);
    if (found == memory_.end()) return;
    bytes_ -= std::min(bytes_, found->second.nbytes());
    memory_.erase(found);
  }

  at::Tensor input(const RecordedOperation& operation, const RecordedInput& in) {
    if (!in.constant.defined())
      return tensor_on(memory_for(in.geometry), in.geometry, c10::DispatchKey::CPU);
    if (!in.constant.is_inference() && in.constant._version() != in.version) {
      throw Error(ErrorCode::kUsage,
                  fmt::format("a tensor from outside coupler::EmptyWeights, an input of '{}', was "
                              "changed before the weights made from it were materialized",
                              operation.op.schema().name()),
                  {.subject = operation.op.schema().name(),
                   .hint = "materialize first, or give the scope a clone of it"});
    }
    return in.constant;
  }

  // Restores the thread's modes after each step, so that a sink may run any operation.
  void execute(const ReplayStep& step) {
    RecordedOperation& operation = at(step.operation);
    if (step.skip_draw) {
      stream_ = *operation.after;
      return;
    }
    const NeutralModes modes;
    const DefaultDtypeGuard dtype(operation.default_dtype);
    const GeneratorGuard generator;
    if (const GeneratorState* const start = start_of(operation)) write_generator(*start);
    std::vector<c10::IValue> stack = operation.arguments;
    for (const RecordedInput& in : operation.inputs) put(stack, in.position, input(operation, in));
    operation.op.callBoxed(stack);
    ++report_.operations;
    if (operation.random) end_stream(operation, read_generator());
    for (const RecordedOutput& out : operation.outputs)
      keep(get(stack, out.position), out.geometry, operation.op.schema().name());
    if (operation.content && operation.content->bytes) {
      const TensorGeometry& geometry = operation.outputs.front().geometry;
      std::memcpy(memory_.at(geometry.storage).mutable_data(), operation.content->bytes.get(),
                  geometry.bytes);
    }
  }

  // The modes and the generator are restored after each chunk, as after each step.
  void execute_in_chunks(const ReplayStep& step) {
    RecordedOperation& fill = at(step.operation);
    const TensorGeometry& whole = fill.inputs.front().geometry;
    const size_t element = c10::elementSize(whole.dtype);
    const Chunks chunks(static_cast<int64_t>(whole.bytes / element), element, chunks_.bytes);
    const size_t bytes = static_cast<size_t>(chunks.largest()) * element;
    const c10::Storage& memory =
        hold(whole.storage,
             c10::Storage(c10::Storage::use_byte_size_t(), bytes, c10::GetCPUAllocator(), true));
    const GeneratorState* const start = start_of(fill);
    GeneratorState stream = start != nullptr ? *start : read_generator();
    chunks.each([&](int64_t begin, int64_t count) {
      at::Tensor chunk;
      {
        const NeutralModes modes;
        const GeneratorGuard generator;
        write_generator(stream);
        chunk = tensor_on(memory,
                          {.bytes = bytes, .dtype = whole.dtype, .sizes = {count}, .strides = {1}},
                          c10::DispatchKey::CPU);
        run_on_chunk(fill, begin, chunk);
        stream = read_generator();
        for (const size_t later : step.later) run_on_chunk(at(later), begin, chunk);
      }
      if (!step.finished.empty()) chunks_.sink(whole.storage, begin, chunk);
    });
    if (fill.random) end_stream(fill, stream);
    report_.operations += 1 + step.later.size();
    release(whole.storage);
  }

  // The generator's state before an operation's draws; null: as it is.
  const GeneratorState* start_of(const RecordedOperation& operation) const {
    if (operation.before) return operation.before.get();
    return stream_ ? &*stream_ : nullptr;
  }

  void end_stream(RecordedOperation& operation, const GeneratorState& now) {
    const auto lock = recording_.lock();
    if (!operation.after) operation.after = std::make_shared<const GeneratorState>(now);
    stream_ = *operation.after;
  }

  // Later readers of the storage expect the meta kernel's geometry; if the real kernel chose
  // another, the values are copied into that layout.
  void keep(const at::Tensor& real, const TensorGeometry& geometry, const std::string& name) {
    if (real.sizes() != geometry.sizes || real.scalar_type() != geometry.dtype) {
      throw Error(
          ErrorCode::kUnsupported,
          fmt::format("the shape of the result of '{}' depends on randomly drawn values, which "
                      "coupler::EmptyWeights cannot record",
                      name),
          {.subject = name, .hint = "do it outside the scope"});
    }
    const bool as_recorded =
        real.strides() == geometry.strides && real.storage_offset() == geometry.offset &&
        real.is_conj() == geometry.conjugate && real.is_neg() == geometry.negative;
    if (as_recorded) {
      hold(geometry.storage, real.storage());
    } else {
      tensor_on(memory_for(geometry), geometry, c10::DispatchKey::CPU).copy_(real);
    }
  }

  Recording& recording_;
  const StorageSink& sink_;
  const StoragesInChunks& chunks_;
  std::unordered_map<uint64_t, c10::Storage> memory_;
  std::optional<GeneratorState> stream_;  // where the last draw ended
  size_t bytes_ = 0;
  ReplayReport report_;
};

}  // namespace

c10::DispatchKeySet recording_keys() {
  return c10::autocast_dispatch_keyset |
         c10::DispatchKeySet(c10::DispatchKey::TESTING_ONLY_GenericMode);
}

std::unique_lock<std::recursive_mutex> exclude_replays() {
  static std::recursive_mutex mutex;  // recursive: a sink may materialize more
  return std::unique_lock(mutex);
}

ReplayReport replay(const std::shared_ptr<Recording>& recording,
                    const std::unordered_set<uint64_t>& wanted, const StorageSink& sink,
                    const StoragesInChunks& chunks) {
  const Recording::Use use(recording);
  std::vector<ReplayStep> steps;
  {
    const auto lock = recording->lock();
    const std::deque<RecordedOperation>& operations = recording->operations();
    steps = plan_replay(operations, wanted, false);
    plan_chunks(operations, chunked_fills(operations, chunks.types), steps);
  }
  return Replay(*recording, sink, chunks).run(steps);
}

std::optional<at::Tensor> value_of(const at::Tensor& recorded) {
  const StorageTag& tag = *Recording::tag_of(recorded);
  const Recording::Use use(tag.recording);
  std::vector<ReplayStep> steps;
  {
    const auto lock = tag.recording->lock();
    const std::deque<RecordedOperation>& operations = tag.recording->operations();
    steps = plan_replay(operations, {tag.id}, false);
    for (const ReplayStep& step : steps) {
      if (operations[step.operation].random) return std::nullopt;
    }
  }
  at::Tensor result;
  const StorageSink sink = [&](uint64_t, const c10::Storage& value) {
    result = tensor_on(value, geometry_of(recorded), c10::DispatchKey::CPU);
  };
  const StoragesInChunks none = {};
  Replay(*tag.recording, sink, none).run(steps);
  return result;
}

}  // namespace coupler::empty_weights

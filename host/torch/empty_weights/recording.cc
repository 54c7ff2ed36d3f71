#include "empty_weights/recording.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/List.h>
#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include <mutex>
#include <utility>

#include "empty_weights/replay.h"

namespace coupler::empty_weights {
namespace {

at::CPUGeneratorImpl& generator() {
  return *at::detail::getDefaultCPUGenerator().get<at::CPUGeneratorImpl>();
}

c10::StorageImpl& storage_of(const at::Tensor& tensor) {
  return *tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

}  // namespace

GeneratorState read_generator() {
  at::CPUGeneratorImpl& source = generator();
  const std::lock_guard lock(source.mutex_);
  return {source.engine(), source.next_float_normal_sample(), source.next_double_normal_sample()};
}

void write_generator(const GeneratorState& state) {
  at::CPUGeneratorImpl& target = generator();
  const std::lock_guard lock(target.mutex_);
  target.set_engine(state.engine);
  target.set_next_float_normal_sample(state.next_float);
  target.set_next_double_normal_sample(state.next_double);
}

bool same_state(const GeneratorState& a, const GeneratorState& b) {
  const at::mt19937_data_pod x = a.engine.data(), y = b.engine.data();
  return x.seed_ == y.seed_ && x.left_ == y.left_ && x.next_ == y.next_ && x.state_ == y.state_ &&
         a.next_float == b.next_float && a.next_double == b.next_double;
}

GeneratorState derived_state(const GeneratorState& state) {
  at::mt19937 engine = state.engine;
  const uint64_t high = engine();
  return {at::mt19937(high << 32 | engine()), std::nullopt, std::nullopt};
}

TensorGeometry geometry_of(const at::Tensor& tensor) {
  return {.storage = 0,
          .bytes = storage_of(tensor).nbytes(),
          .dtype = tensor.scalar_type(),
          .offset = tensor.storage_offset(),
          .sizes = c10::DimVector(tensor.sizes()),
          .strides = c10::DimVector(tensor.strides()),
          .conjugate = tensor.is_conj(),
          .negative = tensor.is_neg()};
}

at::Tensor tensor_on(const c10::Storage& storage, const TensorGeometry& geometry,
                     c10::DispatchKey device) {
  at::Tensor result =
      at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), c10::DispatchKeySet(device),
                                               c10::scalarTypeToTypeMeta(geometry.dtype));
  c10::TensorImpl* const impl = result.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(geometry.sizes, geometry.strides, geometry.offset);
  if (geometry.conjugate) impl->_set_conj(true);
  if (geometry.negative) impl->_set_neg(true);
  return result;
}

StorageTag* Recording::tag_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_meta() || !tensor.has_storage()) return nullptr;
  const at::DataPtr& data = storage_of(tensor)._mutable_data_ptr_no_checks();
  if (data.get_deleter() != &Recording::release) return nullptr;
  return static_cast<StorageTag*>(data.get_context());
}

void Recording::release(void* context) {
  const std::unique_ptr<StorageTag> tag(static_cast<StorageTag*>(context));
  Recording& recording = *tag->recording;
  std::deque<RecordedOperation> dropped;  // freed after the lock is released
  const std::lock_guard lock(recording.mutex_);
  recording.alive_.erase(tag->id);
  recording.some_died_ = true;
  if (recording.uses_ == 0 && recording.alive_.empty()) dropped = recording.trim();
}

Recording::Use::Use(std::shared_ptr<Recording> recording) : recording_(std::move(recording)) {
  const std::lock_guard lock(recording_->mutex_);
  ++recording_->uses_;
}

Recording::Use::~Use() {
  std::deque<RecordedOperation> dropped;
  const std::lock_guard lock(recording_->mutex_);
  if (--recording_->uses_ == 0 && recording_->some_died_) dropped = recording_->trim();
}

uint64_t Recording::adopt(const at::Tensor& fresh, const std::shared_ptr<RawContent>& content) {
  auto tag = std::make_unique<StorageTag>(
      StorageTag{.recording = shared_from_this(), .id = 0, .content = content});
  {
    const std::lock_guard lock(mutex_);
    tag->id = next_storage_++;
    alive_.insert(tag->id);
  }
  const uint64_t id = tag->id;
  storage_of(fresh).set_data_ptr_noswap(at::DataPtr(content ? content->bytes.get() : nullptr,
                                                    tag.release(), &Recording::release,
                                                    c10::Device(c10::kMeta)));
  if (!content) storage_of(fresh).set_throw_on_mutable_data_ptr();
  return id;
}

std::shared_ptr<RawContent> Recording::close_data(const at::Tensor& tensor) {
  StorageTag* const tag = tag_of(tensor);
  if (tag == nullptr || !tag->content) return nullptr;
  c10::StorageImpl& storage = storage_of(tensor);
  storage._mutable_data_ptr_no_checks().release_context();
  storage.set_data_ptr_noswap(
      at::DataPtr(nullptr, tag, &Recording::release, c10::Device(c10::kMeta)));
  storage.set_throw_on_mutable_data_ptr();
  return std::exchange(tag->content, nullptr);
}

void Recording::append(RecordedOperation operation, const std::optional<GeneratorState>& found) {
  const std::lock_guard lock(mutex_);
  if (found) {
    if (!mark_ || !same_state(*mark_, *found)) {
      operation.before = std::make_shared<const GeneratorState>(*found);
      mark_ = derived_state(*found);
    }
    write_generator(*mark_);
  }
  operations_.push_back(std::move(operation));
}

void Recording::remember_version(const c10::weak_intrusive_ptr<c10::TensorImpl>& tensor) {
  const auto alive = tensor.lock();
  if (!alive || alive->is_inference()) return;
  const std::lock_guard lock(mutex_);
  versions_.insert_or_assign(alive.get(),
                             Version{tensor, alive->version_counter().current_version()});
}

bool Recording::unchanged(const at::Tensor& tensor) const {
  if (tensor.is_inference()) return true;
  const std::lock_guard lock(mutex_);
  const auto found = versions_.find(tensor.unsafeGetTensorImpl());
  return found == versions_.end() || found->second.version == tensor._version();
}

std::deque<RecordedOperation> Recording::trim() {
  some_died_ = false;
  std::erase_if(versions_, [](const auto& item) { return item.second.tensor.expired(); });
  std::deque<RecordedOperation> all = std::exchange(operations_, {});
  for (const ReplayStep& step : plan_replay(all, alive_, true)) {
    RecordedOperation& kept = operations_.emplace_back(std::move(all[step.operation]));
    if (!step.skip_draw) continue;
    kept.arguments.clear();  // it never runs again
    kept.inputs.clear();
    kept.outputs.clear();
  }
  return all;
}

void for_each_tensor(const std::vector<c10::IValue>& values,
                     const std::function<void(Position, const at::Tensor&)>& visit) {
  for (size_t i = 0; i < values.size(); ++i) {
    const c10::IValue& value = values[i];
    if (value.isTensor()) {
      if (value.toTensor().defined()) visit({i, -1}, value.toTensor());
    } else if (value.isTensorList() || value.isOptionalTensorList()) {
      const auto elements = value.toListRef();
      for (size_t j = 0; j < elements.size(); ++j) {
        if (elements[j].isTensor() && elements[j].toTensor().defined())
          visit({i, static_cast<int>(j)}, elements[j].toTensor());
      }
    }
  }
}

at::Tensor get(const std::vector<c10::IValue>& values, Position position) {
  const c10::IValue& value = values.at(position.index);
  if (position.element < 0) return value.toTensor();
  return value.toListRef()[static_cast<size_t>(position.element)].toTensor();
}

void put(std::vector<c10::IValue>& values, Position position, const at::Tensor& tensor) {
  c10::IValue& value = values.at(position.index);
  if (position.element < 0) {
    value = tensor;
    return;
  }
  const auto list = value.toList().copy();
  list.set(static_cast<size_t>(position.element), tensor);
  value = list;
}

}  // namespace coupler::empty_weights

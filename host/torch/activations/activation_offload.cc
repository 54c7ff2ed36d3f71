#include "activations/activation_offload.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/log.h"
#include "device/device_memory.h"
#include "empty_weights/recording.h"
#include "residency/intercept.h"
#include "tensors/autocast_state.h"

namespace coupler::activations {
namespace {

// A trained tensor that is not computed is a parameter, whatever module owns it.
bool is_parameter(const at::TensorBase& tensor) {
  return tensor.requires_grad() && tensor.is_leaf();
}

}  // namespace

ActivationOffload& ActivationOffload::of_process() {
  // Never destroyed: LibTorch threads may still use it.
  static auto* const kTheOne = new ActivationOffload;
  return *kTheOne;
}

void ActivationOffload::leave_in_place(const strategy::Model& model) {
  const std::lock_guard lock(mutex_);
  for (const strategy::ModelParameter& parameter : model.parameters)
    in_place_.push_back(parameter.tensor);
  for (const auto& [name, buffer] : model.buffers) in_place_.push_back(buffer);
}

void ActivationOffload::forget_all() {
  const std::lock_guard lock(mutex_);
  in_place_.clear();
}

bool ActivationOffload::moves(const at::Tensor& tensor) const {
  if (!tensor.defined() || tensor.is_cpu() || tensor.is_meta()) return false;
  if (tensor.layout() != at::kStrided || tensor.is_quantized() || tensor.numel() == 0) return false;
  if (residency::managed_storage_of(tensor) != nullptr || is_parameter(tensor)) return false;
  if (tensor.is_view() && is_parameter(tensor._base())) return false;
  const c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  if (storage->data() == nullptr) return false;
  const std::lock_guard lock(mutex_);
  return std::none_of(in_place_.begin(), in_place_.end(), [&](const at::Tensor& known) {
    return known.has_storage() && known.storage().unsafeGetStorageImpl() == storage;
  });
}

void ActivationOffload::log_nothing_moves() {
  if (logged_.exchange(true)) return;
  log(LogLevel::kInfo, "train",
      "activations are already in host memory: there is nothing to offload");
}

namespace {

// Also tries an event: a stream that nothing can wait for is useless.
std::optional<c10::Stream> new_stream(c10::Device device) {
  if (!device::can_pin(device)) return std::nullopt;
  try {
    const c10::DeviceGuard guard(device);
    const c10::Stream stream =
        c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
    c10::Event event(device.type());
    event.record(stream);
    return stream;
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

std::optional<c10::Stream> stream_of(c10::Device device) {
  static std::mutex mutex;
  // Never destroyed: LibTorch's threads may still use it.
  static auto* const kStreams = new std::unordered_map<c10::Device, std::optional<c10::Stream>>;
  const std::lock_guard lock(mutex);
  const auto [found, is_new] = kStreams->try_emplace(device);
  if (is_new) found->second = new_stream(device);
  return found->second;
}

void use_on(const c10::Storage& memory, const c10::Stream& stream) {
  c10::impl::VirtualGuardImpl(stream.device_type())
      .recordDataPtrOnStream(memory.data_ptr(), stream);
}

c10::Stream own_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

// SideStream: overlaps copies between a device and host memory with the device's computation. While
// one is alive, its thread's work on the device goes to a stream used only for copies, one per
// device. On devices without streams, copies and computation take turns, and copies are complete
// when they return. Belongs to one thread; any number of threads may have one.
class SideStream {
 public:
  explicit SideStream(c10::Device device)
      : stream_(stream_of(device)),
        own_(stream_ ? std::optional(own_stream(device)) : std::nullopt),
        device_guard_(device),
        stream_guard_(stream_) {}
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;

  // Whether copies may still be in flight when they return.
  bool is_async() const { return stream_.has_value(); }
  // Makes later work wait for all work queued so far on the thread's own stream.
  void follow() const {
    if (!stream_) return;
    c10::Event before(own_->device_type());
    before.record(*own_);
    before.block(*stream_);
  }
  // Keeps the memory from being reused before the work queued here is done.
  void hold(const c10::Storage& memory) const {
    if (stream_) use_on(memory, *stream_);
  }
  // Marks all work queued so far; null if the device has no streams and the work is done.
  std::shared_ptr<c10::Event> mark() const {
    if (!stream_) return nullptr;
    auto event = std::make_shared<c10::Event>(stream_->device_type());
    event->record(*stream_);
    return event;
  }

 private:
  const std::optional<c10::Stream> stream_, own_;
  const c10::DeviceGuard device_guard_;
  const c10::OptionalStreamGuard stream_guard_;
};

using c10::StorageImpl;

// All existing copies, by the storage they copy.
struct Copies {
  std::mutex mutex;
  std::unordered_multimap<const StorageImpl*, std::weak_ptr<HostCopy>> all;
};
Copies& copies() {
  static auto* const kAll = new Copies;  // graphs may outlive the end of main
  return *kAll;
}

c10::weak_intrusive_ptr<StorageImpl> weakly(const c10::Storage& storage) {
  return c10::weak_intrusive_ptr<StorageImpl>(
      c10::intrusive_ptr<StorageImpl>::reclaim_copy(storage.unsafeGetStorageImpl()));
}

// Hides these operations from code that observes the program's operations.
struct Unwatched {
  const at::NoGradGuard no_grad;
  const c10::impl::ExcludeDispatchKeyGuard below{tensors::kRecordedKey};
};

at::Tensor bytes_of(const at::Tensor& tensor, StorageRange range) {
  const empty_weights::TensorGeometry geometry{.storage = 0,
                                               .bytes = 0,
                                               .dtype = at::kByte,
                                               .offset = range.begin,
                                               .sizes = {range.end - range.begin},
                                               .strides = {1}};
  return empty_weights::tensor_on(
      tensor.storage(), geometry,
      c10::computeDispatchKey(at::kByte, at::kStrided, tensor.device()));
}

}  // namespace

StorageRange range_of(const at::Tensor& tensor) {
  const auto element = static_cast<int64_t>(tensor.element_size());
  const auto all = static_cast<int64_t>(tensor.storage().nbytes());
  int64_t last = 0;
  for (int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
  const StorageRange own{tensor.storage_offset() * element,
                         (tensor.storage_offset() + last + 1) * element};
  return 2 * (own.end - own.begin) >= all ? StorageRange{0, all} : own;
}

bool HostCopy::is_of(const at::Tensor& tensor, StorageRange range) const {
  return range_.begin <= range.begin && range.end <= range_.end && !storage_.expired() &&
         !version_.changed() && version_.same_version(VersionMark(tensor));
}

std::shared_ptr<HostCopy> HostCopy::of(const at::Tensor& tensor) {
  const StorageRange range = range_of(tensor);
  const StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  std::vector<std::shared_ptr<HostCopy>> others;  // ~HostCopy takes the lock: destroyed after it
  const std::lock_guard lock(copies().mutex);
  const auto [first, end] = copies().all.equal_range(storage);
  for (auto known = first; known != end; ++known) {
    auto copy = known->second.lock();
    if (copy == nullptr) continue;
    if (copy->is_of(tensor, range)) return copy;
    others.push_back(std::move(copy));
  }
  auto copy = std::make_shared<HostCopy>(tensor, range);
  copies().all.emplace(storage, copy);
  return copy;
}

HostCopy::HostCopy(const at::Tensor& tensor, StorageRange range)
    : range_(range),
      storage_(weakly(tensor.storage())),
      version_(tensor),
      device_(tensor.device()),
      back_(c10::intrusive_ptr<StorageImpl>()) {
  const Unwatched unwatched;
  const SideStream side(device_);
  side.follow();
  bytes_ = device::host_bytes(range.end - range.begin, device_);
  bytes_.copy_(bytes_of(tensor, range), side.is_async());
  side.hold(tensor.storage());
}

HostCopy::~HostCopy() {
  const std::lock_guard lock(copies().mutex);
  std::erase_if(copies().all, [](const auto& known) { return known.second.expired(); });
}

c10::Storage HostCopy::bring_back() {
  const std::lock_guard lock(mutex_);
  if (auto there = back_.lock()) return c10::Storage(std::move(there));
  const Unwatched unwatched;
  const SideStream side(device_);
  const at::Tensor bytes = at::empty(bytes_.sizes(), at::TensorOptions(at::kByte).device(device_));
  bytes.copy_(bytes_, side.is_async());
  arrived_ = side.mark();
  back_ = weakly(bytes.storage());
  return bytes.storage();
}

void HostCopy::await(const c10::Storage& bytes) const {
  std::shared_ptr<c10::Event> arrived;
  {
    const std::lock_guard lock(mutex_);
    arrived = arrived_;
  }
  if (arrived == nullptr) return;
  const c10::Stream own = own_stream(bytes.device());
  arrived->block(own);
  use_on(bytes, own);
}

std::shared_ptr<OffloadedTensors> OffloadedTensors::make() {
  static thread_local std::weak_ptr<OffloadedTensors> last;
  auto result = std::make_shared<OffloadedTensors>();
  result->before_ = std::exchange(last, result);
  return result;
}

size_t OffloadedTensors::add(const at::Tensor& tensor) {
  auto copy = HostCopy::of(tensor);
  empty_weights::TensorGeometry geometry = empty_weights::geometry_of(tensor);
  geometry.offset -= copy->range().begin / static_cast<int64_t>(tensor.element_size());
  const c10::DispatchKey key =
      c10::computeDispatchKey(tensor.scalar_type(), at::kStrided, tensor.device());
  const std::lock_guard lock(mutex_);
  tensors_.push_back({std::move(geometry), key, residency::has_intercept(tensor), std::move(copy)});
  return tensors_.size() - 1;
}

void OffloadedTensors::fetch_locked() {
  if (!fetched_.empty()) return;
  for (const Tensor& tensor : tensors_) fetched_.push_back(tensor.copy->bring_back());
}

void OffloadedTensors::fetch() {
  const std::lock_guard lock(mutex_);
  fetch_locked();
}

std::vector<at::Tensor> OffloadedTensors::bring_back() {
  std::vector<at::Tensor> result;
  {
    const std::lock_guard lock(mutex_);
    fetch_locked();
    const std::vector<c10::Storage> memory = std::exchange(fetched_, {});
    for (size_t i = 0; i < tensors_.size(); ++i) {
      tensors_[i].copy->await(memory[i]);
      result.push_back(empty_weights::tensor_on(memory[i], tensors_[i].geometry, tensors_[i].key));
      if (tensors_[i].intercepted) residency::put_intercept(result.back());
    }
  }
  if (const auto before = before_.lock()) before->fetch();
  return result;
}

void OffloadedTensors::forget() {
  const std::lock_guard lock(mutex_);
  fetched_.clear();
  tensors_.clear();
}

}  // namespace coupler::activations

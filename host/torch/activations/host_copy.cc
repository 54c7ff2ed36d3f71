#include "activations/host_copy.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <unordered_map>
#include <utility>
#include <vector>

#include "activations/side_stream.h"
#include "device/pinned.h"
#include "empty_weights/recipe.h"

namespace coupler {
namespace {

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
  const c10::impl::ExcludeDispatchKeyGuard below{c10::DispatchKey::TESTING_ONLY_GenericWrapper};
};

at::Tensor bytes_of(const at::Tensor& tensor, ByteRange range) {
  const Place place{.storage = 0,
                    .bytes = 0,
                    .dtype = at::kByte,
                    .offset = range.begin,
                    .sizes = {range.end - range.begin},
                    .strides = {1}};
  return tensor_on(tensor.storage(), place,
                   c10::computeDispatchKey(at::kByte, at::kStrided, tensor.device()));
}

}  // namespace

ByteRange range_of(const at::Tensor& tensor) {
  const auto element = static_cast<int64_t>(tensor.element_size());
  const auto all = static_cast<int64_t>(tensor.storage().nbytes());
  int64_t last = 0;
  for (int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
  const ByteRange own{tensor.storage_offset() * element,
                      (tensor.storage_offset() + last + 1) * element};
  return 2 * (own.end - own.begin) >= all ? ByteRange{0, all} : own;
}

bool HostCopy::is_of(const at::Tensor& tensor, ByteRange range) const {
  return range_.begin <= range.begin && range.end <= range_.end && !storage_.expired() &&
         !version_.changed() && version_.same_version(VersionMark(tensor));
}

std::shared_ptr<HostCopy> HostCopy::of(const at::Tensor& tensor) {
  const ByteRange range = range_of(tensor);
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

HostCopy::HostCopy(const at::Tensor& tensor, ByteRange range)
    : range_(range),
      storage_(weakly(tensor.storage())),
      version_(tensor),
      device_(tensor.device()),
      back_(c10::intrusive_ptr<StorageImpl>()) {
  const Unwatched unwatched;
  const SideStream side(device_);
  side.follow();
  bytes_ = host_bytes(range.end - range.begin, device_);
  bytes_.copy_(bytes_of(tensor, range), side.beside());
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
  bytes.copy_(bytes_, side.beside());
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
  SideStream::join(arrived, bytes);
}

}  // namespace coupler

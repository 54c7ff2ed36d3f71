#include "residency/unit.h"

#include <utility>

#include "residency/intercept.h"
#include "residency/packed.h"
#include "residency/residency.h"

namespace coupler::residency {
namespace {

// Identifies our storages; the memory belongs to the unit, so there is nothing to free.
void managed_storage(void*) {}

}  // namespace

ManagedStorage* ManagedStorage::of(const c10::StorageImpl& storage) {
  const at::DataPtr& data = storage.data_ptr();
  return data.get_deleter() == &managed_storage ? static_cast<ManagedStorage*>(data.get_context())
                                                : nullptr;
}

// Context and deleter keep their values, so of() may read them meanwhile. The pointer is read under
// a pin.
void ManagedStorage::point_to(void* unit_memory) {
  void* place = unit_memory == nullptr ? nullptr : static_cast<char*>(unit_memory) + offset;
  if (packed != nullptr) memory = std::exchange(place, nullptr);
  storage->set_data_ptr_noswap(c10::DataPtr(place, this, &managed_storage, device));
}

InUse::InUse(const at::Tensor& tensor, Access access) {
  const ManagedStorage* const managed = managed_storage_of(tensor);
  if (managed == nullptr) return;
  if (managed->packed != nullptr) refuse_packed(*managed, "using or saving its values in place");
  Unit& unit = *managed->unit;
  access == Access::kReplace ? unit.residency->use_for_overwrite(unit) : unit.residency->use(unit);
  unit_ = &unit;
  written_ = unit.written.load();
  if (access != Access::kRead) unit.written.store(true);
}

InUse::~InUse() {
  if (unit_ != nullptr) Residency::unpin(*unit_);
}

void InUse::drop_writes() {
  if (unit_ != nullptr) unit_->written.store(written_);
}

void visit_in_groups(const std::vector<at::Tensor>& tensors,
                     const std::function<void(at::TensorList)>& visit) {
  const at::TensorList all(tensors);
  for (size_t begin = 0, end = 0; begin < all.size(); begin = end) {
    end = begin + 1;
    if (managed_storage_of(all[begin]) == nullptr) {
      while (end < all.size() && managed_storage_of(all[end]) == nullptr) ++end;
    }
    visit(all.slice(begin, end - begin));
  }
}

}  // namespace coupler::residency

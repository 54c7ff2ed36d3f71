#include "residency/unit.h"

#include <utility>

namespace coupler {
namespace {

// Identifies our storages; the memory belongs to the unit, so there is nothing to free.
void managed_storage(void*) {}

}  // namespace

Home* Home::of(const c10::StorageImpl& storage) {
  const at::DataPtr& data = storage.data_ptr();
  return data.get_deleter() == &managed_storage ? static_cast<Home*>(data.get_context()) : nullptr;
}

// Context and deleter keep their values, so of() may read them meanwhile. The pointer is read under
// a pin.
void Home::point_to(void* unit_memory) {
  void* place = unit_memory == nullptr ? nullptr : static_cast<char*>(unit_memory) + offset;
  if (packed != nullptr) memory = std::exchange(place, nullptr);
  storage->set_data_ptr_noswap(c10::DataPtr(place, this, &managed_storage, device));
}

}  // namespace coupler

#include <coupler/empty_weights.h>

#include <algorithm>

#include "residency/intercept.h"
#include "residency/residency.h"

namespace coupler {

struct FullParameters::State {
  std::vector<Unit*> units;  // pinned
  bool writeback = false;

  ~State() {
    for (Unit* unit : units) {
      if (writeback) unit->residency->store(*unit);
      unit->writable.fetch_sub(1);
      Residency::unpin(*unit);
      // Other ranks own the rest of the unit; the next use gathers what they stored.
      unit->residency->release(*unit);
    }
  }
};

FullParameters::FullParameters(const std::vector<at::Tensor>& parameters, bool writeback)
    : state_(std::make_unique<State>()) {
  state_->writeback = writeback;
  for (const at::Tensor& parameter : parameters) {
    const ManagedStorage* const managed = managed_storage_of(parameter);
    if (managed == nullptr) continue;
    Unit* const unit = managed->unit;
    if (std::find(state_->units.begin(), state_->units.end(), unit) != state_->units.end()) {
      continue;
    }
    unit->residency->use(*unit);
    unit->writable.fetch_add(1);
    state_->units.push_back(unit);
  }
}

FullParameters::FullParameters(FullParameters&&) noexcept = default;
FullParameters::~FullParameters() = default;

}  // namespace coupler

#include "residency/in_use.h"

#include "residency/intercept.h"
#include "residency/packed.h"
#include "residency/residency.h"

namespace coupler {

InUse::InUse(const at::Tensor& tensor, Access access) {
  const Home* const home = home_of(tensor);
  if (home == nullptr) return;
  if (home->packed != nullptr) refuse_packed(*home, "using or saving its values in place");
  Unit& unit = *home->unit;
  access == Access::kReplace ? unit.residency->use_blank(unit) : unit.residency->use(unit);
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

void in_bunches(const std::vector<at::Tensor>& tensors,
                const std::function<void(at::TensorList)>& visit) {
  const at::TensorList all(tensors);
  for (size_t begin = 0, end = 0; begin < all.size(); begin = end) {
    end = begin + 1;
    if (home_of(all[begin]) == nullptr) {
      while (end < all.size() && home_of(all[end]) == nullptr) ++end;
    }
    visit(all.slice(begin, end - begin));
  }
}

}  // namespace coupler

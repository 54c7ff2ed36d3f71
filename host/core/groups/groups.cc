#include "groups/groups.h"

#include <utility>

namespace coupler::groups {

Groups::Groups(const Mesh& mesh, std::shared_ptr<comm::Communicator> world)
    : mesh_(mesh), world_(std::move(world)) {
  if (group_size(mesh_, kWorld) == world_->size()) kept_[larger_than_1(mesh_, kWorld)] = world_;
}

std::shared_ptr<comm::Communicator> Groups::get(Dimensions dimensions) {
  const Dimensions larger = larger_than_1(mesh_, dimensions);
  const auto kept = kept_.find(larger);
  if (kept != kept_.end()) return kept->second;
  return kept_[larger] = make(dimensions, name_of(dimensions));
}

std::shared_ptr<comm::Communicator> Groups::make(Dimensions dimensions,
                                                 const std::string& purpose) {
  const int size = group_size(mesh_, dimensions);
  if (size > world_->size())
    return comm::Communicator::made_up(purpose, size, rank_in_group(mesh_, dimensions));
  // Without [parallel], profiles call all ranks the world.
  const std::string group = size == world_->size() ? "" : name_in_profile(mesh_, dimensions);
  return world_->split(group_number(mesh_, dimensions), world_->rank(), purpose, group);
}

}  // namespace coupler::groups

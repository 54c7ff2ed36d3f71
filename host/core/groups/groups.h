// Groups: the owner of a job's communicators. Who needs one (strategies, loaders, loss scaling, the
// program's own collectives) asks by the dimensions along which its ranks differ, so that only this
// class knows which ranks those are.
//
// Used by the training thread. All ranks of the job make the same calls in the same order: a group
// that is new is split off the world, which is collective.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "comm/communicator.h"
#include "groups/mesh.h"

namespace coupler::groups {

class Groups {
 public:
  // world: of all ranks of the mesh; or of this process alone, which then, in a dry run, stands for
  // the mesh's rank: groups larger than that are made up.
  Groups(const Mesh& mesh, std::shared_ptr<comm::Communicator> world);
  Groups(const Groups&) = delete;
  Groups& operator=(const Groups&) = delete;

  const Mesh& mesh() const { return mesh_; }
  const std::shared_ptr<comm::Communicator>& world() const { return world_; }

  // The communicator of this rank's group, for what the training thread does one after another.
  // The same for the same ranks: that of the world if the group is all of it. Kept as long as this
  // lives.
  std::shared_ptr<comm::Communicator> get(Dimensions dimensions);

  // A new communicator of the same ranks, for operations that may be in flight at the same time as
  // others. purpose: appears in its name. Not kept.
  std::shared_ptr<comm::Communicator> make(Dimensions dimensions, const std::string& purpose);

 private:
  const Mesh mesh_;
  const std::shared_ptr<comm::Communicator> world_;
  std::map<Dimensions, std::shared_ptr<comm::Communicator>> kept_;  // by larger_than_1
};

}  // namespace coupler::groups

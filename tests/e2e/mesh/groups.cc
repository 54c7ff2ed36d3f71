// Groups by name and by color, on any mesh.
#include <coupler/coupler.h>
#include <coupler/objects.h>

#include <algorithm>
#include <numeric>

#include "mesh_checks.h"

using coupler::Accelerator;
using coupler::Group;
using coupler::Mesh;
using coupler::ReduceOp;

namespace {

const std::vector<std::string> kNames = {"pipeline",
                                         "data",
                                         "shard",
                                         "expert",
                                         "context",
                                         "tensor",
                                         "data+shard",
                                         "tensor+pipeline",
                                         "world",
                                         "data",
                                         "context+tensor+data"};

void collectives_meet_the_ranks_of_the_mesh(Accelerator& accelerator) {
  const Mesh& mesh = accelerator.mesh();
  for (const std::string& name : kNames) {
    const Group group = accelerator.group(name);
    const std::vector<int> ranks = mesh.ranks(name);
    const auto own = torch::tensor({accelerator.rank()});
    EXPECT(group.ranks() == ranks, name + ": the group has other ranks than the mesh");
    EXPECT(group.rank() == mesh.rank(name) && group.world_size() == mesh.size(name),
           name + ": another place than the mesh's");
    EXPECT(torch::equal(group.gather(own), torch::tensor(ranks)), name + ": gather");
    const int sum = std::accumulate(ranks.begin(), ranks.end(), 0);
    EXPECT(group.reduce(own).item<int>() == sum, name + ": reduce");
    EXPECT(group.reduce(own, ReduceOp::kMax).item<int>() == ranks.back(), name + ": maximum");
    EXPECT(group.broadcast(own, group.world_size() - 1).item<int>() == ranks.back(),
           name + ": broadcast");
    const auto padded = group.pad_across_processes(torch::ones({group.rank() + 1}));
    EXPECT(padded.size(0) == group.world_size(), name + ": padding");
    const std::map<std::string, torch::Tensor> nested = {{"rank", own}};
    EXPECT(group.gather(nested).at("rank").size(0) == group.world_size(), name + ": nested");
    const auto part = group.split_between_processes(std::vector<int>(ranks));
    EXPECT(part == std::vector<int>{accelerator.rank()}, name + ": split_between_processes");
    EXPECT(coupler::gather_object(group, accelerator.rank()) == ranks, name + ": gather_object");
    EXPECT(coupler::broadcast_object(group, accelerator.rank(), group.world_size() - 1) ==
               ranks.back(),
           name + ": broadcast_object");
    group.wait_for_everyone();
  }
}

void split_orders_by_key(Accelerator& accelerator) {
  const int rank = accelerator.rank(), world = accelerator.world_size();
  const Group backwards = accelerator.split(0, world - rank);
  EXPECT(backwards.rank() == world - 1 - rank, "the order is not that of the keys");
  EXPECT(backwards.ranks().front() == world - 1, "the first rank is not that of the least key");
  const Group odd = accelerator.split(rank % 2 == 1 ? 7 : -3);
  EXPECT(static_cast<bool>(odd) == (rank % 2 == 1), "a rank is in the wrong group");
  if (odd) {
    EXPECT(odd.reduce(torch::ones({1})).item<float>() == static_cast<float>(world / 2), "reduce");
    const Group alone = odd.split(odd.rank());
    EXPECT(alone.world_size() == 1 && alone.ranks() == std::vector<int>{rank},
           "a group of one rank");
  } else {
    EXPECT(error_of([&] { odd.rank(); }).find("this rank is not in the group") != std::string::npos,
           "the refusal");
  }
}

void wrong_names_are_refused(Accelerator& accelerator) {
  const std::string message = error_of([&] { (void)accelerator.group("tensors"); });
  EXPECT(message.find("no dimension 'tensors'; did you mean 'tensor'?") != std::string::npos,
         message);
}

// Errors name ranks by their numbers in the job.
void mismatches_within_a_group_name_its_ranks(Accelerator& accelerator) {
  const Group group = accelerator.group("tensor");
  if (group.world_size() == 1) return;
  const std::string message = error_of([&] { group.reduce(torch::ones({group.rank() + 1})); });
  const std::string first = std::to_string(group.ranks()[0]);
  const std::string second = std::to_string(group.ranks()[1]);
  EXPECT(message.find("ranks " + first + " and " + second + " differ") != std::string::npos,
         message);
  group.wait_for_everyone();
}

void seeds_are_the_same_within_tensor_groups(Accelerator& accelerator) {
  coupler::set_seed(11, {.device_specific = true});
  const auto drawn = accelerator.gather(torch::rand({1}, torch::kDouble));
  const auto own = drawn[accelerator.rank()].item<double>();
  const std::vector<int> tensor = accelerator.mesh().ranks("tensor");
  for (int rank = 0; rank < accelerator.world_size(); ++rank) {
    const bool same = std::find(tensor.begin(), tensor.end(), rank) != tensor.end();
    EXPECT((drawn[rank].item<double>() == own) == same,
           "rank " + std::to_string(rank) + (same ? " draws other numbers" : " draws the same"));
  }
}

}  // namespace

std::vector<Check> group_checks() {
  return {{"any_mesh_collectives", collectives_meet_the_ranks_of_the_mesh},
          {"any_mesh_split", split_orders_by_key},
          {"any_mesh_wrong_names", wrong_names_are_refused},
          {"any_mesh_mismatches", mismatches_within_a_group_name_its_ranks},
          {"any_mesh_seeds", seeds_are_the_same_within_tensor_groups}};
}

std::vector<Check> all_checks() {
  std::vector<Check> checks;
  for (const auto& some :
       {group_checks(), mesh_sample_checks(), mesh_training_checks(), mesh_stage_checks(),
        mesh_tensor_checks(), mesh_sequence_checks(), mesh_adapter_checks(), mesh_fp8_checks(),
        mesh_context_checks(), mesh_expert_checks(), mesh_loss_checks(), mesh_dropout_checks()})
    checks.insert(checks.end(), some.begin(), some.end());
  return checks;
}

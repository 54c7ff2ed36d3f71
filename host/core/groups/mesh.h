// The mesh as data: dimensions as sets, and the ranks of the groups that a set makes. Mesh itself,
// which users see, is in coupler/processes.h. Pure functions; [any-thread].
//
// A rank's number is that of its place in the grid, counted with the last dimension (tensor)
// fastest.
#pragma once

#include <coupler/processes.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"

namespace coupler::groups {

// A set of dimensions.
using Dimensions = uint32_t;
inline constexpr Dimensions kPipeline = 1, kData = 2, kShard = 4, kExpert = 8, kContext = 16,
                            kTensor = 32, kWorld = 63;
// Ranks that differ in these get different samples; all others the same.
inline constexpr Dimensions kSamples = kData | kShard | kExpert;
// Ranks that differ in these average the gradients of what they all hold.
inline constexpr Dimensions kGradients = kSamples | kContext;

// Throws Error(kInvalidArgument) for a name that Mesh does not know.
Dimensions dimensions_of(std::string_view group);
std::string name_of(Dimensions dimensions);  // "data+shard"; "world" for all

// What profiles call the group: its dimensions larger than 1; "world" if it is all ranks and there
// are several of these.
std::string name_in_profile(const Mesh& mesh, Dimensions dimensions);

// Without the dimensions of size 1: sets with the same result have the same groups.
Dimensions larger_than_1(const Mesh& mesh, Dimensions dimensions);

int group_size(const Mesh& mesh, Dimensions dimensions);
int rank_in_group(const Mesh& mesh, Dimensions dimensions);
// The number of this rank's group among the groups of these dimensions, from 0.
int group_number(const Mesh& mesh, Dimensions dimensions);
std::vector<int> ranks_of_group(const Mesh& mesh, Dimensions dimensions);

// Whether [parallel] sets anything.
bool is_configured(const config::Config& config);

// The mesh that [parallel] describes for a job of this many ranks. Throws Error(kConfig) if the
// sizes do not multiply to that.
Mesh mesh_of(const config::Config& config, int world_size, int rank);

// What a dry run, which is one process, stands for: the first rank of a stage of the first
// pipeline, and the ranks that divide a model's layers and experts or its sequences with it. data
// and shard are 1. 0 <= stage < the size of pipeline.
Mesh within_replica(const Mesh& mesh, int stage = 0);

// "pipeline 2 x data 2"; only dimensions larger than 1; "1 rank" if there are none.
std::string describe(const Mesh& mesh);

// For `coupler config --explain`: the mesh of launch.processes ranks, or why there is none. ""
// unless [parallel] sets something.
std::string explain(const config::Config& config);

}  // namespace coupler::groups

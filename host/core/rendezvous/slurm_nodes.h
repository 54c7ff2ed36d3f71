// Slurm's lists of nodes. Plain functions, [any-thread].
#pragma once

#include <string>
#include <string_view>

namespace coupler {

// The first node of a list in the form of SLURM_STEP_NODELIST: gpu07 for "gpu[07-12,20],cpu1"; ""
// for an empty list.
std::string first_slurm_node(std::string_view list);

}  // namespace coupler

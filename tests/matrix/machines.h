// Machines: ranks of one computer that are told to be on several. Pure functions.
#pragma once

#include <string>

#include "rendezvous/process_info.h"

namespace coupler::matrix {

// process with the local rank and size that it has if the ranks fill machines of those sizes, in
// order: "2,1" has ranks 0 and 1 on one machine, rank 2 on another. Throws Error(kUsage) if the
// sizes are no numbers, or not as many as process has ranks.
rendezvous::ProcessInfo place_on_machines(const std::string& sizes,
                                          rendezvous::ProcessInfo process);

}  // namespace coupler::matrix

#include "commands.h"
#include "launch_modes.h"
#include "launch_plan.h"
#include "output_relay.h"
#include "plugin/transport.h"

namespace coupler::cli {

int run_launch(int argc, char** argv) {
  LaunchPlan plan = make_launch_plan(argc, argv);
  if (plan.help) {
    write_all(1, kLaunchUsage);
    return 0;
  }
  if (plan.processes == 1) {
    return launch_local(plan);  // one process needs no backend
  }
  // Decided once and here, so that all ranks agree, and since mpirun must be chosen first.
  const TransportPlan transport = plan_transport(plan.config.backend, MpiLaunch::kPossible);
  plan.config.backend.use = transport.use;
  plan.overrides.insert(plan.overrides.end(), transport.overrides.begin(),
                        transport.overrides.end());
  return transport.needs_mpi_launch ? launch_mpi(plan) : launch_local(plan);
}

}  // namespace coupler::cli

// --via k8s: a manifest whose pods run `coupler launch`, one per machine. Plain functions; no
// threading rule.
#pragma once

#include <string>

#include "cli/launch/launch_plan.h"

namespace coupler::cli {

// A JobSet or a PyTorchJob, as YAML. Throws Error(kUsage) without an image, or for a name that
// Kubernetes does not accept.
std::string kubernetes_manifest(const LaunchPlan& plan);

}  // namespace coupler::cli

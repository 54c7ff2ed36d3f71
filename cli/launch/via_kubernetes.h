// --via k8s: a manifest whose pods run `coupler launch`, one a machine. Plain functions; no thread
// rule.
#pragma once

#include <string>

#include "cli/launch/launch_plan.h"

namespace coupler::cli {

// A JobSet or a PyTorchJob, as YAML. Throws Error(kUsage) without an image, or for a name that
// Kubernetes does not take.
std::string kubernetes_manifest(const LaunchPlan& plan);

}  // namespace coupler::cli

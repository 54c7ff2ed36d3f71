// A job whose rank-shims run on several machines: the address of the launcher's store and the
// secret for it. The shims get the address and a nonce from an environment variable, which need not
// be secret. The secret is derived from the nonce and launch.secret_file, which every machine has.
// Values and plain functions; no threading rule.
#pragma once

#include <string>

#include "cli/launch/launch_plan.h"
#include "rendezvous/job_file.h"

namespace coupler::cli {

// The variable that gives the address of the launcher's store to shims of other machines.
inline constexpr const char* kShimStore = "COUPLER_SHIM_STORE";

// Whether the launcher can serve a store to shims on several machines: a secret is configured, and
// the interface is named or follows from the hostfile.
bool can_have_network_store(const LaunchPlan& plan);

struct NetworkJob {
  std::string nonce;        // of this start
  std::string secret_file;  // absolute
  JobAddress address;       // the port is set later
};
// Throws Error(kConfig) naming the interface, the machine or the secret file that is wrong.
NetworkJob make_network_job(const LaunchPlan& plan);

std::string encode(const NetworkJob& job);
// For a shim. Throws Error(kConfig) for a bad secret file, which it names, or a malformed string.
JobAddress read_network_job(const std::string& text);

}  // namespace coupler::cli

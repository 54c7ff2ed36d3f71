// A job whose rank-shims run on several machines: where the launcher's store is for them, and what
// opens it. The shims learn the place by a variable, which may be seen; the secret is made from it
// and the bytes of launch.secret_file, which every machine has. Values and plain functions; no
// thread rule.
#pragma once

#include <string>

#include "cli/launch/launch_plan.h"
#include "rendezvous/job_file.h"

namespace coupler::cli {

// The variable in which the launcher tells shims of other machines where its store is.
inline constexpr const char* kShimStore = "COUPLER_SHIM_STORE";

// Whether the launcher can have a store that shims on several machines reach: there is a secret,
// and the interface is named or follows from the machines that are.
bool can_have_network_store(const LaunchPlan& plan);

struct NetworkJob {
  std::string nonce;        // of this start
  std::string secret_file;  // absolute
  JobAddress address;       // its port is not known yet
};
// Throws Error(kConfig) naming the interface, the machine or the secret file that is wrong.
NetworkJob make_network_job(const LaunchPlan& plan);

std::string encode(const NetworkJob& job);
// On the machine of a shim. Throws Error(kConfig) naming the secret file, and for a text that is
// none of ours.
JobAddress read_network_job(const std::string& text);

}  // namespace coupler::cli

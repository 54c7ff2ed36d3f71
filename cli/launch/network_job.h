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
  std::string nonce;               // of this start
  std::string secret_file;         // absolute
  rendezvous::JobAddress address;  // the port is set later
};
// Throws Error(kConfig) naming the interface, the machine or the secret file that is wrong.
NetworkJob make_network_job(const LaunchPlan& plan);

std::string encode(const NetworkJob& job);
// For a shim. Throws Error(kConfig) for a bad secret file, which it names, or a malformed string.
rendezvous::JobAddress read_network_job(const std::string& text);

// What a launcher checks about this machine's network before it starts anything: the interface that
// the ranks use, and the address and port that the other machines connect to. Plain functions; no
// threading rule.

// Throws Error(kConfig), listing the interfaces, if the string is neither an interface nor an
// address of one, or means all of them. said_by: where it was set ("train.toml:3:1",
// "-o backend.interface").
void check_interface(const std::string& interface_or_address, const std::string& said_by);

// For the machine that others connect to. Throws Error(kUsage) if the host is not an address of
// this machine, or the port cannot be used.
void check_own_address_and_port(const std::string& host, int port);

}  // namespace coupler::cli

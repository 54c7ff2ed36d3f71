// HostChoice: which machines of a hostfile run a job, and how many processes each, as deepspeed's
// options say it: --num_nodes, --num_gpus, --include, --exclude. Plain data and functions; no
// threading rule.
#pragma once

#include <optional>
#include <string>

#include "cli/launch/host_file.h"

namespace coupler::cli {

struct HostChoice {
  std::optional<int> machines;                  // the first ones
  std::optional<int> slots;                     // of each machine
  std::string include, exclude;                 // "node1@node2:0,1"; "": all, none
  std::string machines_option = "--num_nodes";  // what set machines, for messages

  bool given() const { return machines || slots || !include.empty() || !exclude.empty(); }
};

// Without a hostfile: the devices that --include names on this machine, "0,1" of "localhost:0,1".
// Throws Error(kUsage) if it names other machines, or no devices.
std::string devices_here(const std::string& include);

// Applies a choice. Throws Error(kUsage) naming the option and the machine or slot that the file
// does not have, and for devices of another machine that are not its first ones: each rank uses the
// device of its local rank.
HostFile chosen_hosts(const HostFile& file, const HostChoice& choice);

}  // namespace coupler::cli

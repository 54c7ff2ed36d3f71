#include "cli/launch/host_choice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <vector>

#include "base/text.h"
#include "cli/launch/launch_options.h"

namespace coupler::cli {
namespace {

// A part of "node1@node2:0,1".
struct HostSpec {
  std::string host;
  std::set<int> slots;  // empty: all
};

[[noreturn]] void refuse_choice(const char* option, const std::string& value,
                                const std::string& problem,
                                const std::string& hint =
                                    "write machines and slots as "
                                    "node1@node2:0,1") {
  refuse_option(option, value, problem, hint);
}

std::vector<HostSpec> read_specs(const char* option, const std::string& value) {
  std::vector<HostSpec> specs;
  for (const std::string& part : split(value, '@')) {
    HostSpec spec{part.substr(0, part.find(':')), {}};
    if (spec.host.empty()) refuse_choice(option, value, "the name of a machine is missing");
    if (std::any_of(specs.begin(), specs.end(),
                    [&](const HostSpec& other) { return other.host == spec.host; }))
      refuse_choice(option, value, fmt::format("{} occurs twice", spec.host),
                    "name all of its slots together, as node1:0,1");
    if (spec.host.size() == part.size()) {
      specs.push_back(spec);
      continue;
    }
    for (const std::string& text : split(part.substr(spec.host.size() + 1), ',')) {
      const auto slot = to_number<int>(text);
      if (!slot || *slot < 0)
        refuse_choice(option, value, fmt::format("'{}' is not a slot's number, from 0", text));
      if (!spec.slots.insert(*slot).second)
        refuse_choice(option, value, fmt::format("slot {} of {} occurs twice", *slot, spec.host));
    }
    specs.push_back(spec);
  }
  return specs;
}

// The slots that remain on a machine, which must be its first ones.
int count_slots(const char* option, const std::string& value, const std::string& host,
                const std::set<int>& slots) {
  const auto count = static_cast<int>(slots.size());
  if (!slots.empty() && *slots.rbegin() != count - 1)
    refuse_choice(option, value,
                  fmt::format("{} is left with the devices {}, but ranks on a machine of a "
                              "hostfile use its first devices",
                              host, fmt::join(slots, ",")),
                  fmt::format("write slots={} in the hostfile, and set CUDA_VISIBLE_DEVICES={} on "
                              "that machine",
                              count, fmt::join(slots, ",")));
  return count;
}

std::set<int> all_slots(int count) {
  std::set<int> slots;
  for (int i = 0; i < count; ++i) slots.insert(i);
  return slots;
}

void apply_specs(HostFile& file, const char* option, const std::string& value, bool include) {
  std::vector<HostSlots> chosen;
  const std::vector<HostSpec> specs = read_specs(option, value);
  for (const HostSpec& spec : specs) {
    const auto known = std::find_if(file.hosts.begin(), file.hosts.end(),
                                    [&](const HostSlots& one) { return one.host == spec.host; });
    if (known == file.hosts.end()) {
      std::vector<std::string> names;
      for (const HostSlots& one : file.hosts) names.push_back(one.host);
      refuse_choice(option, value,
                    fmt::format("{} does not list the machine '{}'{}", file.path, spec.host,
                                did_you_mean(spec.host, names)));
    }
    if (!spec.slots.empty() && *spec.slots.rbegin() >= known->slots)
      refuse_choice(option, value,
                    fmt::format("{} has {} slots in {}, so there is none of number {}", spec.host,
                                known->slots, file.path, *spec.slots.rbegin()));
    std::set<int> slots = all_slots(known->slots);
    if (include && !spec.slots.empty()) slots = spec.slots;
    if (!include) {
      if (spec.slots.empty()) slots.clear();
      for (const int slot : spec.slots) slots.erase(slot);
    }
    const int count = count_slots(option, value, spec.host, slots);
    if (include) {
      chosen.push_back({spec.host, count});
    } else {
      known->slots = count;
    }
  }
  if (include) file.hosts = chosen;
  std::erase_if(file.hosts, [](const HostSlots& one) { return one.slots == 0; });
  if (file.hosts.empty()) refuse_choice(option, value, "no machine is left");
}

}  // namespace

std::string devices_here(const std::string& include) {
  const std::vector<HostSpec> specs = read_specs("--include", include);
  if (specs.size() != 1 || specs[0].slots.empty() || !is_this_machine(specs[0].host))
    refuse_choice(
        "--include", include, "without a hostfile only devices of this machine can be named",
        "write --include localhost:0,1, or name the machines with --via mpirun --hostfile "
        "FILE");
  return fmt::format("{}", fmt::join(specs[0].slots, ","));
}

HostFile chosen_hosts(const HostFile& file, const HostChoice& choice) {
  if ((choice.machines || choice.slots) && !(choice.include.empty() && choice.exclude.empty()))
    fail_usage(fmt::format("{} and {} cannot be combined",
                           choice.machines ? choice.machines_option : "--num_gpus",
                           choice.include.empty() ? "--exclude" : "--include"),
               "--num_nodes", "--include and --exclude already say which machines and slots");
  if (!choice.include.empty() && !choice.exclude.empty())
    fail_usage("--include and --exclude cannot be combined", "--exclude", "omit one of them");
  HostFile result = file;
  if (!choice.include.empty()) apply_specs(result, "--include", choice.include, true);
  if (!choice.exclude.empty()) apply_specs(result, "--exclude", choice.exclude, false);
  if (choice.machines) {
    const auto most = static_cast<int>(result.hosts.size());
    if (*choice.machines > most)
      refuse_choice(choice.machines_option.c_str(), std::to_string(*choice.machines),
                    fmt::format("{} lists only {} machines", file.path, most),
                    "list more, or ask for fewer");
    result.hosts.resize(static_cast<size_t>(*choice.machines));
  }
  for (HostSlots& host : result.hosts) {
    if (!choice.slots) break;
    if (*choice.slots > host.slots)
      refuse_choice("--num_gpus", std::to_string(*choice.slots),
                    fmt::format("{} has only {} slots in {}", host.host, host.slots, file.path),
                    "raise slots=N there, or ask for fewer");
    host.slots = *choice.slots;
  }
  return result;
}

}  // namespace coupler::cli

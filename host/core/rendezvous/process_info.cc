#include "rendezvous/process_info.h"

#include <fmt/format.h>

#include <regex>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/process.h"
#include "plugin/plugin.h"
#include "rendezvous/launcher_env.h"

namespace coupler::rendezvous {

std::string first_slurm_node(std::string_view list) {
  // What is in brackets stands for its first number.
  static const std::regex kBrackets(R"(\[([^\],-]*)[^\]]*\])");
  const std::string plain = std::regex_replace(std::string(list), kBrackets, "$1");
  return plain.substr(0, plain.find(','));
}

namespace {

void check_inside(const std::optional<FoundVariable>& rank,
                  const std::optional<FoundVariable>& world_size) {
  if (rank && world_size && rank->number >= world_size->number) {
    fail_config(fmt::format("{} is out of range for {}: ranks run from 0 to {}", for_message(*rank),
                            for_message(*world_size), world_size->number - 1),
                rank->name, fmt::format("correct {} or {}", rank->name, world_size->name));
  }
}

void check_agree(const LauncherClaim& a, const LauncherClaim& b,
                 const std::optional<FoundVariable>& x, const std::optional<FoundVariable>& y) {
  if (!x || !y || x->number == y->number) {
    return;
  }
  std::string others;
  for (const char* name :
       {b.row->rank, b.row->world_size, b.row->local_rank, b.row->local_world_size}) {
    others += name == nullptr ? "" : fmt::format(" {}", name);
  }
  fail_config(
      fmt::format("two launchers disagree about this process: {} ({}) but {} ({})", for_message(*x),
                  a.row->name, for_message(*y), b.row->name),
      x->name,
      fmt::format("start the program with one launcher, or unset the variables of the other:{}",
                  others));
}

[[noreturn]] void fail_half(const LauncherClaim& claim) {
  const auto& present = claim.rank ? *claim.rank : *claim.world_size;
  const char* missing = claim.rank ? claim.row->world_size : claim.row->rank;
  fail_config(fmt::format("{} is set, but {} is not: both are needed to identify this process ({})",
                          for_message(present), missing, claim.row->name),
              missing, fmt::format("set {} too, or unset {}", missing, present.name));
}

// Slurm and Kubernetes start programs, or launchers that start programs. Those launchers count the
// processes of a machine, so a local rank shows that one is in between; the two numbers then mean
// different things.
bool started_by_one_between(const LauncherClaim& inner, const LauncherClaim& outer) {
  return outer.places_launchers && !inner.places_launchers && inner.local_rank;
}

// All claims must agree; an incomplete one is an error, unless `first` places launchers.
void check_claims(const std::vector<LauncherClaim>& claims, const LauncherClaim& first) {
  for (const LauncherClaim& claim : claims) {
    check_inside(claim.rank, claim.world_size);
    check_inside(claim.local_rank, claim.local_world_size);
    if (&claim == &first) {
      continue;
    }
    if (!claim.is_whole() && !first.places_launchers) {
      fail_half(claim);
    }
    if (started_by_one_between(first, claim)) {
      continue;
    }
    check_agree(first, claim, first.rank, claim.rank);
    check_agree(first, claim, first.world_size, claim.world_size);
    check_agree(first, claim, first.local_rank, claim.local_rank);
    check_agree(first, claim, first.local_world_size, claim.local_world_size);
  }
}

int checked_port(const FoundVariable& port) {
  if (port.number > 65535) {
    fail_config(fmt::format("{} is not a port: ports run from 1 to 65535", for_message(port)),
                "MASTER_PORT", "correct MASTER_PORT");
  }
  return port.number;
}

// Where the store of a torchrun-like environment is.
void read_master(const EnvironmentLookup& lookup, const LauncherClaim& claim, ProcessInfo& info) {
  const auto host = lookup("MASTER_ADDR");
  const auto port = read_number(lookup, "MASTER_PORT", 1);
  if (host.empty() || !port) {
    const char* missing = port ? "MASTER_ADDR" : "MASTER_PORT";
    fail_config(fmt::format("{} and {}={} are set, but {} is not: the ranks meet there",
                            claim.row->rank, claim.row->world_size, info.world_size, missing),
                missing,
                "start the program with `torchrun` or `coupler launch`, or set MASTER_ADDR and "
                "MASTER_PORT");
  }
  info.store_host = host;
  info.store_port = checked_port(*port);
}

// Where ranks on several machines meet if their launcher does not say. With Slurm, on the first
// node, at a port derived from the job, unless MASTER_ADDR or MASTER_PORT is set.
void read_place(const EnvironmentLookup& lookup, ProcessInfo& info) {
  std::string host = lookup("MASTER_ADDR");
  const auto said = read_number(lookup, "MASTER_PORT", 1);
  int port = said ? checked_port(*said) : 0;
  if (info.launcher == LauncherKind::kSlurm) {
    const auto job = read_number(lookup, "SLURM_JOB_ID", 0);
    const auto step = read_number(lookup, "SLURM_STEP_ID", 0);
    constexpr int kFirst = 20000;
    constexpr int kPorts = 12000;  // below Linux's ephemeral ports
    const int number = (job ? job->number : 0) % kPorts * 31 + (step ? step->number : 0) % kPorts;
    host = host.empty() ? first_slurm_node(lookup("SLURM_STEP_NODELIST")) : host;
    port = port == 0 ? kFirst + number % kPorts : port;
  }
  if (!host.empty() && port != 0) {
    info.store_host = host;
    info.store_port = port;
  }
}

// A pod of a job holds one rank, unless a launcher inside it counts more.
bool is_alone_in_a_pod(const EnvironmentLookup& lookup, const LauncherClaim& claim) {
  if (claim.local_rank || claim.local_world_size || claim.row->kind == LauncherKind::kOpenMpi ||
      claim.row->kind == LauncherKind::kMpich) {
    return false;
  }
  // The latter is PyTorchJob's.
  if (lookup("JOB_COMPLETION_INDEX").empty() && lookup("PET_NODE_RANK").empty()) {
    return false;
  }
  const auto each = lookup("PET_NPROC_PER_NODE");
  if (!each.empty() && each != "1" && each.find_first_not_of("0123456789") == std::string::npos) {
    fail_config(
        fmt::format("PET_NPROC_PER_NODE={} requests {} processes in each pod, but the program was "
                    "started once ({})",
                    each, each, for_message(*claim.rank)),
        "PET_NPROC_PER_NODE",
        fmt::format("start it through torchrun, or `coupler launch --per-machine {}`, in the pod",
                    each));
  }
  return true;
}

void read_local(const EnvironmentLookup& lookup, const LauncherClaim& claim, ProcessInfo& info) {
  if (claim.row->kind == LauncherKind::kSlurm && !claim.local_world_size && info.world_size > 1) {
    fail_config(
        fmt::format("{} is set, but SLURM_STEP_TASKS_PER_NODE and SLURM_NODEID, which say what "
                    "runs on this machine, are not both set",
                    for_message(*claim.rank)),
        "SLURM_STEP_TASKS_PER_NODE", "start the program with srun, which sets them");
  }
  if (is_alone_in_a_pod(lookup, claim)) {
    return;  // 0 of 1
  }
  info.local_rank = claim.local_rank ? claim.local_rank->number : info.rank;
  info.local_world_size = claim.local_world_size ? claim.local_world_size->number : info.world_size;
  info.says_local_world = claim.local_world_size.has_value();
}

}  // namespace

ProcessInfo detect_process(const EnvironmentLookup& lookup) {
  std::vector<LauncherClaim> claims;
  const LauncherClaim* first = nullptr;
  for (const auto& row : launcher_table()) {
    if (auto claim = read_claim(lookup, row)) {
      claims.push_back(*std::move(claim));
    }
  }
  for (const LauncherClaim& claim : claims) {
    // MPICH's variables, if Slurm set them, say less than Slurm's own.
    const bool says_more = first != nullptr && first->row->kind == LauncherKind::kMpich &&
                           first->places_launchers && claim.row->kind == LauncherKind::kSlurm;
    first = (first == nullptr || says_more) && claim.is_whole() ? &claim : first;
  }
  ProcessInfo info;
  if (claims.empty()) {
    return info;
  }
  if (first == nullptr) {
    fail_half(claims.front());
  }
  check_claims(claims, *first);
  info.launcher = first->row->kind;
  info.rank = first->rank->number;
  info.world_size = first->world_size->number;
  read_local(lookup, *first, info);
  if (info.world_size == 1) {
    return info;  // there are no other ranks
  }
  if (info.launcher == LauncherKind::kCoupler) {
    info.job_file = lookup("COUPLER_JOB_FILE");
    if (info.job_file.empty()) {
      fail_config(fmt::format("{} is set, but COUPLER_JOB_FILE is not: the ranks cannot meet",
                              for_message(*first->rank)),
                  "COUPLER_JOB_FILE", "start the program with `coupler launch`");
    }
  } else if (info.launcher == LauncherKind::kTorchrun ||
             info.launcher == LauncherKind::kKubernetes) {
    read_master(lookup, *first, info);
  } else if (info.local_world_size != info.world_size) {
    read_place(lookup, info);
  }
  return info;
}

ProcessInfo detect_process() { return detect_process(environment_value); }

const char* launcher_name(LauncherKind kind) {
  for (const LauncherRow& row : launcher_table()) {
    if (row.kind == kind) {
      return row.name;
    }
  }
  return "nothing";
}

plugin::MpiLaunch mpi_launch_of(const ProcessInfo& process) {
  return process.launcher == LauncherKind::kOpenMpi ? plugin::MpiLaunch::kInside
                                                    : plugin::MpiLaunch::kTooLate;
}

plugin::Spread spread_of(const ProcessInfo& process) {
  const bool together = process.says_local_world && process.local_world_size == process.world_size;
  return together ? plugin::Spread::kOneMachine : plugin::Spread::kUnknown;
}

}  // namespace coupler::rendezvous

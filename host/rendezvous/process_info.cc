#include "rendezvous/process_info.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cstdlib>
#include <vector>

namespace coupler {
namespace {

// One row a launcher, the most explicit first. Rank and size identify it; the local pair is
// optional (absent: all ranks are on this machine).
struct LauncherRow {
  LauncherKind kind;
  const char* name;
  const char* rank;
  const char* world;
  const char* local_rank;
  const char* local_world;
};

constexpr std::array<LauncherRow, 3> kLaunchers = {{
    {LauncherKind::kCoupler, "coupler launch", "COUPLER_RANK", "COUPLER_WORLD_SIZE",
     "COUPLER_LOCAL_RANK", "COUPLER_LOCAL_WORLD_SIZE"},
    {LauncherKind::kTorchrun, "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {LauncherKind::kOpenMpi, "Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
}};

// A variable as it was found: kept with its text, for messages.
struct Found {
  const char* variable;
  std::string text;
  int number;
};

std::string shown(const Found& found) { return fmt::format("{}={}", found.variable, found.text); }

[[noreturn]] void fail(const std::string& message, const char* variable, std::string hint) {
  throw Error(ErrorCode::kConfig, message, {.subject = variable, .hint = std::move(hint)});
}

std::optional<Found> read_number(const EnvironmentLookup& lookup, const char* variable, int least) {
  const auto text = lookup(variable);
  if (!text || text->empty()) {
    return std::nullopt;
  }
  int number = 0;
  const auto* end = text->data() + text->size();
  const auto [stop, status] = std::from_chars(text->data(), end, number);
  if (status != std::errc() || stop != end || number < least) {
    fail(fmt::format("the environment variable {} is '{}', which is not a whole number of at "
                     "least {}",
                     variable, *text, least),
         variable, fmt::format("unset {0} or let the launcher set it", variable));
  }
  return Found{variable, *text, number};
}

// What one launcher says about this process.
struct Claim {
  const LauncherRow* row;
  Found rank, world;
  std::optional<Found> local_rank, local_world;
};

void check_inside(const Found& rank, const Found& world) {
  if (rank.number >= world.number) {
    fail(fmt::format("{} is not inside {}: ranks run from 0 to {}", shown(rank), shown(world),
                     world.number - 1),
         rank.variable, fmt::format("correct {} or {}", rank.variable, world.variable));
  }
}

std::optional<Claim> read_claim(const EnvironmentLookup& lookup, const LauncherRow& row) {
  auto rank = read_number(lookup, row.rank, 0);
  auto world = read_number(lookup, row.world, 1);
  if (!rank && !world) {
    return std::nullopt;
  }
  if (!rank || !world) {
    const auto& present = rank ? *rank : *world;
    const char* missing = rank ? row.world : row.rank;
    fail(fmt::format("{} is set, but {} is not: together they say which process of how many this "
                     "is ({})",
                     shown(present), missing, row.name),
         missing, fmt::format("set {} too, or unset {}", missing, present.variable));
  }
  Claim claim{&row, *rank, *world, read_number(lookup, row.local_rank, 0),
              read_number(lookup, row.local_world, 1)};
  check_inside(claim.rank, claim.world);
  if (claim.local_rank && claim.local_world) {
    check_inside(*claim.local_rank, *claim.local_world);
  }
  return claim;
}

void check_agree(const Claim& a, const Claim& b, const std::optional<Found>& x,
                 const std::optional<Found>& y) {
  if (x && y && x->number != y->number) {
    fail(fmt::format("two launchers disagree about this process: {} ({}) but {} ({})", shown(*x),
                     a.row->name, shown(*y), b.row->name),
         x->variable,
         fmt::format("start the program with one launcher, or unset the variables of the other: "
                     "{} {} {} {}",
                     b.row->rank, b.row->world, b.row->local_rank, b.row->local_world));
  }
}

// Where the store of a torchrun-like environment is.
void read_master(const EnvironmentLookup& lookup, ProcessInfo& info) {
  const auto host = lookup("MASTER_ADDR");
  const auto port = read_number(lookup, "MASTER_PORT", 1);
  if (!host || host->empty() || !port) {
    const char* missing = port ? "MASTER_ADDR" : "MASTER_PORT";
    fail(fmt::format("RANK and WORLD_SIZE={} are set, but {} is not: the ranks meet there",
                     info.world, missing),
         missing,
         "start the program with `torchrun` or `coupler launch`, or set MASTER_ADDR and "
         "MASTER_PORT");
  }
  if (port->number > 65535) {
    fail(fmt::format("{} is no port: ports run from 1 to 65535", shown(*port)), "MASTER_PORT",
         "correct MASTER_PORT");
  }
  info.store_host = *host;
  info.store_port = port->number;
}

}  // namespace

ProcessInfo detect_process(const EnvironmentLookup& lookup) {
  std::vector<Claim> claims;
  for (const auto& row : kLaunchers) {
    if (auto claim = read_claim(lookup, row)) {
      claims.push_back(*std::move(claim));
    }
  }
  ProcessInfo info;
  if (claims.empty()) {
    return info;
  }
  const Claim& first = claims.front();
  for (size_t i = 1; i < claims.size(); ++i) {
    const Claim& other = claims[i];
    check_agree(first, other, first.rank, other.rank);
    check_agree(first, other, first.world, other.world);
    check_agree(first, other, first.local_rank, other.local_rank);
    check_agree(first, other, first.local_world, other.local_world);
  }
  info.launcher = first.row->kind;
  info.rank = first.rank.number;
  info.world = first.world.number;
  info.local_rank = first.local_rank ? first.local_rank->number : info.rank;
  info.local_world = first.local_world ? first.local_world->number : info.world;
  if (info.world == 1) {
    return info;  // nobody to meet
  }
  if (info.launcher == LauncherKind::kCoupler) {
    const auto file = lookup("COUPLER_JOB_FILE");
    if (!file || file->empty()) {
      fail(fmt::format("{} is set, but COUPLER_JOB_FILE is not: the ranks cannot meet",
                       shown(first.rank)),
           "COUPLER_JOB_FILE", "start the program with `coupler launch`");
    }
    info.job_file = *file;
  } else if (info.launcher == LauncherKind::kTorchrun) {
    read_master(lookup, info);
  }
  return info;
}

ProcessInfo detect_process() {
  return detect_process([](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  });
}

}  // namespace coupler

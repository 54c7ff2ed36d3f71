#include "comm/machines.h"

#include <coupler/error.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <sstream>

namespace coupler::comm {
namespace {

constexpr const char* kHint =
    "start every machine's ranks with one launcher, or correct the local rank and the number of "
    "ranks on the machine in their environment";

std::string this_machine() {
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
  std::string boot_id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot_id;
  return fmt::format("{}/{}", host.data(), boot_id);
}

// One machine while it fills up.
struct Filling {
  const RankPlace* first = nullptr;
  std::vector<int> ranks;  // by local rank; -1: not there
};

std::string host_of(const RankPlace& place) {
  return place.machine.substr(0, place.machine.find('/'));
}

[[noreturn]] void refuse_machine(const std::string& what, int rank) {
  throw Error(ErrorCode::kMismatch, what, {.rank = rank, .subject = "local ranks", .hint = kHint});
}

// A machine lacks a rank: says who disagrees about its size, if anyone does.
[[noreturn]] void refuse_incomplete(const std::vector<RankPlace>& places, const Filling& machine) {
  const auto missing = std::find(machine.ranks.begin(), machine.ranks.end(), -1);
  const auto there =
      std::find_if(machine.ranks.begin(), machine.ranks.end(), [](int rank) { return rank >= 0; });
  const RankPlace& place = places[static_cast<size_t>(*there)];
  for (size_t other = 0; other < places.size(); ++other) {
    if (places[other].machine != place.machine || places[other].local_size == place.local_size) {
      continue;
    }
    refuse_machine(
        fmt::format("the ranks of the machine {} differ in its number of ranks: {} on rank {}, {} "
                    "on rank {}",
                    host_of(place), place.local_size, *there, places[other].local_size, other),
        static_cast<int>(other));
  }
  refuse_machine(
      fmt::format("rank {} is on the machine {} with {} ranks, but none of the job's "
                  "ranks has local rank {} there",
                  *there, host_of(place), place.local_size, missing - machine.ranks.begin()),
      *there);
}

}  // namespace

std::vector<std::vector<int>> machines_of(const std::vector<RankPlace>& places) {
  std::vector<Filling> machines;
  for (size_t rank = 0; rank < places.size(); ++rank) {
    const RankPlace& place = places[rank];
    if (place.local_size < 1 || place.local_rank < 0 || place.local_rank >= place.local_size) {
      refuse_machine(
          fmt::format("rank {} has local rank {} of {}", rank, place.local_rank, place.local_size),
          static_cast<int>(rank));
    }
    const auto at = static_cast<size_t>(place.local_rank);
    auto found = std::find_if(machines.begin(), machines.end(), [&](const Filling& machine) {
      return machine.first->machine == place.machine &&
             machine.first->local_size == place.local_size && machine.ranks[at] < 0;
    });
    if (found == machines.end()) {
      machines.push_back({&place, std::vector<int>(static_cast<size_t>(place.local_size), -1)});
      found = machines.end() - 1;
    }
    found->ranks[at] = static_cast<int>(rank);
  }
  std::vector<std::vector<int>> result;
  for (const Filling& machine : machines) {
    if (std::find(machine.ranks.begin(), machine.ranks.end(), -1) != machine.ranks.end()) {
      refuse_incomplete(places, machine);
    }
    result.push_back(machine.ranks);
  }
  return result;
}

std::vector<int> share_machine(const RendezvousInfo& rendezvous,
                               const rendezvous::ProcessInfo& process) {
  if (rendezvous.world_size == 1) return {0};
  rendezvous.store->set(
      fmt::format("machines/{}", rendezvous.rank),
      fmt::format("{} {} {}", process.local_rank, process.local_world_size, this_machine()));
  const auto texts =
      rendezvous.store->get_ranks("machines", rendezvous.world_size, rendezvous.timeout);
  std::vector<RankPlace> places;
  for (const auto& text : texts) {
    const auto rank = static_cast<int>(places.size());
    if (!text) throw_absent(rendezvous, rank);
    RankPlace place;
    std::istringstream words(*text);
    words >> place.local_rank >> place.local_size;
    std::getline(words >> std::ws, place.machine);
    places.push_back(std::move(place));
  }
  const std::vector<std::vector<int>> machines = machines_of(places);
  return *std::find_if(machines.begin(), machines.end(), [&](const std::vector<int>& ranks) {
    return std::find(ranks.begin(), ranks.end(), rendezvous.rank) != ranks.end();
  });
}

}  // namespace coupler::comm

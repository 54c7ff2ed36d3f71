#include <bit>
#include <numeric>
#include <stdexcept>

#include "schedules.h"

namespace coupler::bench::simulated {

Group all_ranks(const Rank& rank) {
  Group group{std::vector<int>(static_cast<size_t>(rank.size())), rank.rank()};
  std::iota(group.ranks.begin(), group.ranks.end(), 0);
  return group;
}

std::unique_ptr<Schedule> make_flat(const std::string& name, Rank& rank, Group group) {
  if (name == "ring") return std::make_unique<Ring>(rank, std::move(group));
  // Binary blocks of different sizes do different things.
  if (name == "halving-doubling" && rank.is_folded() &&
      !std::has_single_bit(static_cast<unsigned>(group.size())))
    throw std::invalid_argument(
        "halving-doubling can only be folded if the number of ranks is a power of two");
  if (name == "halving-doubling") return std::make_unique<HalvingDoubling>(rank, std::move(group));
  if (name == "direct") return std::make_unique<Direct>(rank, std::move(group));
  throw std::invalid_argument(
      "there is no schedule '" + name +
      "'; there are ring, halving-doubling and direct, each also after \"hierarchical/\"");
}

std::unique_ptr<Schedule> make_schedule(const std::string& name, Rank& rank, bool is_whole) {
  const std::string prefix = "hierarchical/";
  if (name.starts_with(prefix))
    return std::make_unique<Hierarchical>(
        rank, Hierarchical::Settings{.across = name.substr(prefix.size()), .is_whole = is_whole});
  Group group = all_ranks(rank);
  group.is_whole = is_whole;
  return make_flat(name, rank, std::move(group));
}

}  // namespace coupler::bench::simulated

#include "groups/mesh.h"

#include <coupler/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace coupler::groups {
namespace {

constexpr const char* kWorldName = "world";
constexpr int kMostRows = 32;
constexpr int64_t kMany = int64_t{1} << 31;  // more ranks than any job has

constexpr Dimensions bit(size_t dimension) { return Dimensions{1} << dimension; }

// The place of a rank: its number along each dimension.
Mesh::Sizes place_of(const Mesh& mesh, int rank) {
  Mesh::Sizes place{};
  for (size_t i = place.size(); i-- > 0;) {
    place[i] = rank % mesh.sizes()[i];
    rank /= mesh.sizes()[i];
  }
  return place;
}

// The place's number in the grid that has these dimensions only.
int number_in(const Mesh& mesh, const Mesh::Sizes& place, Dimensions dimensions) {
  int number = 0;
  for (size_t i = 0; i < place.size(); ++i) {
    if ((dimensions & bit(i)) != 0) number = number * mesh.sizes()[i] + place[i];
  }
  return number;
}

Mesh::Sizes own_place(const Mesh& mesh) { return place_of(mesh, mesh.rank(kWorldName)); }

std::vector<std::pair<std::string, config::MeshSize>> configured_sizes(
    const config::ParallelConfig& parallel) {
  return {{"pipeline", parallel.pipeline}, {"data", parallel.data},
          {"shard", parallel.shard},       {"expert", parallel.expert},
          {"context", parallel.context},   {"tensor", parallel.tensor}};
}

std::string sizes_text(const std::vector<std::pair<std::string, config::MeshSize>>& sizes) {
  std::vector<std::string> parts;
  for (const auto& [name, size] : sizes) {
    if (size.is_rest()) {
      parts.push_back(name + " \"rest\"");
    } else if (size.ranks != 1) {
      parts.push_back(fmt::format("{} {}", name, size.ranks));
    }
  }
  return parts.empty() ? "every size 1" : fmt::format("{}", fmt::join(parts, " x "));
}

}  // namespace

Dimensions dimensions_of(std::string_view group) {
  if (group == kWorldName) return kWorld;
  const auto& names = Mesh::dimensions();
  Dimensions result = 0;
  for (const std::string& part : split(group, '+')) {
    const auto found = std::find(names.begin(), names.end(), part);
    if (found == names.end()) {
      const std::vector<std::string> known(names.begin(), names.end());
      fail_argument(
          fmt::format("the mesh has no dimension '{}'{}", for_message(part),
                      did_you_mean(part, known)),
          "group",
          fmt::format("name one of {}, several joined by '+', or world", fmt::join(known, ", ")));
    }
    const Dimensions dimension = bit(static_cast<size_t>(found - names.begin()));
    if ((result & dimension) != 0) {
      fail_argument(fmt::format("the group '{}' names {} twice", for_message(group), part), "group",
                    "name each dimension once");
    }
    result |= dimension;
  }
  return result;
}

std::string name_of(Dimensions dimensions) {
  if (dimensions == kWorld) return kWorldName;
  std::string result;
  for (size_t i = 0; i < Mesh::dimensions().size(); ++i) {
    if ((dimensions & bit(i)) == 0) continue;
    if (!result.empty()) result += '+';
    result += Mesh::dimensions()[i];
  }
  return result;
}

std::string name_in_profile(const Mesh& mesh, Dimensions dimensions) {
  const Dimensions larger = larger_than_1(mesh, dimensions);
  const bool is_everyone = larger == larger_than_1(mesh, kWorld);
  return is_everyone && !std::has_single_bit(larger) ? kWorldName : name_of(larger);
}

Dimensions larger_than_1(const Mesh& mesh, Dimensions dimensions) {
  for (size_t i = 0; i < mesh.sizes().size(); ++i) {
    if (mesh.sizes()[i] == 1) dimensions &= ~bit(i);
  }
  return dimensions;
}

int group_size(const Mesh& mesh, Dimensions dimensions) {
  int result = 1;
  for (size_t i = 0; i < mesh.sizes().size(); ++i) {
    if ((dimensions & bit(i)) != 0) result *= mesh.sizes()[i];
  }
  return result;
}

int rank_in_group(const Mesh& mesh, Dimensions dimensions) {
  return number_in(mesh, own_place(mesh), dimensions);
}

int group_number(const Mesh& mesh, Dimensions dimensions) {
  return number_in(mesh, own_place(mesh), kWorld & ~dimensions);
}

std::vector<int> ranks_of_group(const Mesh& mesh, Dimensions dimensions) {
  const int own = group_number(mesh, dimensions);
  std::vector<int> result;
  for (int rank = 0; rank < group_size(mesh, kWorld); ++rank) {
    if (number_in(mesh, place_of(mesh, rank), kWorld & ~dimensions) == own) result.push_back(rank);
  }
  return result;
}

bool is_configured(const config::Config& config) {
  return std::any_of(config.sources.begin(), config.sources.end(),
                     [](const auto& source) { return source.first.starts_with("parallel."); });
}

Mesh mesh_of(const config::Config& config, int world_size, int rank) {
  auto sizes = configured_sizes(config.parallel);
  const auto other_rests = std::count_if(sizes.begin(), sizes.end(), [](const auto& size) {
    return size.second.is_rest() && size.first != "data";
  });
  for (auto& [name, size] : sizes) {
    if (name == "data" && other_rests > 0 && config.sources.count("parallel.data") == 0) size = {1};
  }
  const std::string text = sizes_text(sizes);
  int64_t product = 1;
  bool has_rest = false;
  for (const auto& [name, size] : sizes) {
    has_rest = has_rest || size.is_rest();
    if (!size.is_rest()) product = std::min(product * std::min(size.ranks, kMany), kMany);
  }
  if (product > world_size || world_size % product != 0 || (!has_rest && product != world_size)) {
    fail_config(fmt::format("[parallel] has {}, {}, but the job has {} rank{}", text,
                            has_rest ? fmt::format("which needs a multiple of {} ranks", product)
                                     : fmt::format("which are {} ranks", product),
                            world_size, world_size == 1 ? "" : "s"),
                "parallel",
                "start as many processes as the sizes multiply to, or set one size to \"rest\"");
  }
  Mesh::Sizes result{};
  for (size_t i = 0; i < result.size(); ++i) {
    const config::MeshSize size = sizes[i].second;
    result[i] = static_cast<int>(size.is_rest() ? world_size / product : size.ranks);
  }
  return {result, rank};
}

Mesh within_replica(const Mesh& mesh, int stage) {
  Mesh::Sizes sizes = mesh.sizes();
  for (size_t i = 0; i < sizes.size(); ++i) {
    if ((bit(i) & (kData | kShard)) != 0) sizes[i] = 1;
  }
  return {sizes, stage * group_size(Mesh(sizes, 0), kWorld & ~kPipeline)};
}

std::string describe(const Mesh& mesh) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < mesh.sizes().size(); ++i) {
    if (mesh.sizes()[i] > 1)
      parts.push_back(fmt::format("{} {}", Mesh::dimensions()[i], mesh.sizes()[i]));
  }
  return parts.empty() ? "1 rank" : fmt::format("{}", fmt::join(parts, " x "));
}

std::string explain(const config::Config& config) {
  if (!is_configured(config)) return "";
  const auto ranks = static_cast<int>(std::min<int64_t>(config.launch.processes, 1 << 20));
  try {
    return fmt::format("Mesh of {} ranks (launch.processes):\n{}", ranks,
                       mesh_of(config, ranks, 0).text());
  } catch (const Error& error) {
    return fmt::format("No mesh of {} ranks (launch.processes): {}\n", ranks, error.what());
  }
}

}  // namespace coupler::groups

// What users see of it.

namespace coupler {

const std::array<const char*, Mesh::kDimensions>& Mesh::dimensions() {
  static constexpr std::array<const char*, kDimensions> kNames = {"pipeline", "data",    "shard",
                                                                  "expert",   "context", "tensor"};
  return kNames;
}

int Mesh::size(const std::string& group) const {
  return groups::group_size(*this, groups::dimensions_of(group));
}

int Mesh::rank(const std::string& group) const {
  const groups::Dimensions dimensions = groups::dimensions_of(group);
  return dimensions == groups::kWorld ? rank_ : groups::rank_in_group(*this, dimensions);
}

std::vector<int> Mesh::ranks(const std::string& group) const {
  return groups::ranks_of_group(*this, groups::dimensions_of(group));
}

// A row for each group along the innermost dimension that is larger than 1.
std::string Mesh::text() const {
  std::vector<size_t> shown;
  for (size_t i = 0; i < sizes_.size(); ++i) {
    if (sizes_[i] > 1) shown.push_back(i);
  }
  if (shown.empty()) return groups::describe(*this) + "\n";
  const size_t inner = shown.back();
  shown.pop_back();
  const int columns = sizes_[inner];
  const int rows = groups::group_size(*this, groups::kWorld) / columns;
  const auto label = [&](size_t dimension, int at) {
    return fmt::format("{} {}", dimensions()[dimension], at);
  };
  const auto width_of = [&](size_t dimension) {
    return label(dimension, sizes_[dimension]).size() + 2;
  };
  std::string text;
  for (const size_t dimension : shown) text += fmt::format("{:{}}", "", width_of(dimension));
  for (int column = 0; column < columns; ++column)
    text += fmt::format("{:>{}}", label(inner, column), width_of(inner));
  text += "\n";
  Sizes above;
  above.fill(-1);
  for (int row = 0; row < std::min(rows, groups::kMostRows); ++row) {
    const Sizes place = groups::place_of(*this, row * columns);
    bool differs = false;  // a label is repeated below one that has changed
    for (const size_t dimension : shown) {
      differs = differs || place[dimension] != above[dimension];
      text += fmt::format("{:<{}}", differs ? label(dimension, place[dimension]) : "",
                          width_of(dimension));
    }
    for (int column = 0; column < columns; ++column)
      text += fmt::format("{:>{}}", row * columns + column, width_of(inner));
    text += "\n";
    above = place;
  }
  if (rows > groups::kMostRows) text += fmt::format("… {} more rows\n", rows - groups::kMostRows);
  return text;
}

}  // namespace coupler

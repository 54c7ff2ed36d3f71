#include <algorithm>

#include "schedules.h"

namespace coupler::bench::simulated {

// A chunk of parts of ranks, divided for the stages. By local index: what lanes have together, what
// this machine's ranks handle in their lanes, and what they own. By machine: what this rank's lane
// handles there.
struct Hierarchical::Chunk {
  std::vector<Part> lanes;
  std::vector<Part> clients;
  std::vector<Part> own;
  std::vector<Part> bundles;
  uint64_t bytes = 0;
};

Hierarchical::Hierarchical(Rank& rank, const Settings& settings)
    : rank_(rank), settings_(settings) {
  const db::hierarchical::Layout& layout = rank.layout();
  if (layout.machine_count() == 1 || !is_in(layout.lanes)) return;
  across_ = make_flat(settings.across, rank, {layout.lane(rank.index()), rank.machine(), false});
  worker_ = std::make_unique<Worker>(rank);
}

int Hierarchical::lanes_for(uint64_t bytes) const {
  return bytes <= settings_.small_bytes ? 1 : rank_.layout().lanes;
}

// Ranks first compare what they called: within, among the first ranks of machines, and within
// again.
void Hierarchical::compare() {
  if (rank_.layout().machine_count() == 1) return;
  rank_.meet_within();
  if (rank_.index() == 0) across_->all_gather(std::vector<Part>(rank_.layout().machines.size()));
  rank_.meet_within();
}

std::vector<Part> Hierarchical::lane_parts(const Block& whole, int lanes) const {
  std::vector<Part> parts = even_parts(whole, lanes);
  parts.resize(static_cast<size_t>(rank_.local_size()));
  return parts;
}

void Hierarchical::all_reduce(const Block& block) {
  compare();
  const bool is_one_machine = rank_.layout().machine_count() == 1;
  const int lanes = is_one_machine ? rank_.local_size() : lanes_for(block.count * kElementBytes);
  const uint64_t chunk =
      std::clamp<uint64_t>(block.count, 1, settings_.chunk_bytes / kElementBytes);
  const uint64_t chunks = repeats((block.count + chunk - 1) / chunk);
  const auto chunk_at = [&](uint64_t k) {
    return Block{block.begin + k * chunk, std::min(chunk, block.count - k * chunk)};
  };
  const auto reduce = [&](uint64_t k) { rank_.reduce_within(lane_parts(chunk_at(k), lanes)); };
  const auto spread = [&](uint64_t k) { rank_.gather_within(lane_parts(chunk_at(k), lanes)); };
  if (chunks == 0) return;
  reduce(0);
  for (uint64_t k = 0; k < chunks; ++k) {
    simgrid::s4u::SemaphorePtr across;
    if (across_ != nullptr && is_in(lanes)) {
      const Block own = lane_parts(chunk_at(k), lanes)[static_cast<size_t>(rank_.index())][0];
      across = worker_->post([this, own] { across_->all_reduce(own); });
    }
    if (k > 0) spread(k - 1);
    if (k + 1 < chunks) reduce(k + 1);
    if (across) across->acquire();
  }
  spread(chunks - 1);
}

Hierarchical::Chunk Hierarchical::chunk_of(const std::vector<Part>& parts, uint64_t begin,
                                           uint64_t count, int lanes) const {
  const db::hierarchical::Layout& layout = rank_.layout();
  Chunk chunk;
  chunk.lanes.resize(static_cast<size_t>(rank_.local_size()));
  chunk.clients.resize(chunk.lanes.size());
  chunk.bundles.resize(layout.machines.size());
  const auto piece = [&](int rank) {
    const Block& part = parts[static_cast<size_t>(rank)][0];
    const uint64_t from = std::min(part.count, begin);
    return Block{part.begin + from, std::min(part.count, begin + count) - from};
  };
  for (int j = 0; j < lanes; ++j) {
    for (int m = 0; m < layout.machine_count(); ++m) {
      const auto& ranks = layout.on(m);
      const auto [first, last] =
          db::hierarchical::clients(static_cast<int>(ranks.size()), lanes, j);
      for (int i = first; i < last; ++i) {
        const Block one = piece(ranks[static_cast<size_t>(i)]);
        chunk.bytes += one.count * kElementBytes;
        chunk.lanes[static_cast<size_t>(j)].push_back(one);
        if (m == rank_.machine()) chunk.clients[static_cast<size_t>(j)].push_back(one);
        if (j == rank_.index()) chunk.bundles[static_cast<size_t>(m)].push_back(one);
      }
    }
  }
  for (const int rank : layout.on(rank_.machine())) chunk.own.push_back({piece(rank)});
  return chunk;
}

// Chunk by chunk: while one is across, the next comes to the lanes and the last one leaves them.
void Hierarchical::pipeline(const std::vector<Part>& parts, const Stage& first, const Across& cross,
                            const Stage& last) {
  uint64_t largest = 0, bytes = 0;
  for (const Part& part : parts)
    largest = std::max(largest, part[0].count), bytes += bytes_of(part);
  if (largest == 0) return;
  compare();
  const int lanes = is_one_machine() ? rank_.local_size() : lanes_for(bytes);
  const uint64_t size =
      std::clamp<uint64_t>(settings_.chunk_bytes / kElementBytes / parts.size(), 1, largest);
  const uint64_t chunks = repeats((largest + size - 1) / size);
  Chunk before, now = chunk_of(parts, 0, size, lanes), next;
  first(now, lanes);
  for (uint64_t k = 0; k < chunks; ++k) {
    simgrid::s4u::SemaphorePtr across;
    if (across_ != nullptr && is_in(lanes))
      across = worker_->post([&cross, bundles = now.bundles] { cross(bundles); });
    if (k > 0) last(before, lanes);
    if (k + 1 < chunks) first(next = chunk_of(parts, (k + 1) * size, size, lanes), lanes);
    if (across) across->acquire();
    before = std::move(now);
    now = std::move(next);
  }
  last(before, lanes);
}

// The parts are packed by lanes, and sums copied out, which moves memory, too.
void Hierarchical::reduce_scatter(const std::vector<Part>& parts) {
  pipeline(
      parts,
      [&](const Chunk& chunk, int) {
        if (!is_one_machine()) rank_.move_memory(2 * chunk.bytes);
        rank_.reduce_within(chunk.lanes);
      },
      [&](const std::vector<Part>& bundles) { across_->reduce_scatter(bundles); },
      [&](const Chunk& chunk, int lanes) {
        if (lanes < rank_.local_size()) rank_.gather_within(chunk.clients);
      });
}

void Hierarchical::all_gather(const std::vector<Part>& parts) {
  pipeline(
      parts,
      [&](const Chunk& chunk, int lanes) {
        if (lanes < rank_.local_size()) rank_.gather_within(chunk.own);
      },
      [&](const std::vector<Part>& bundles) { across_->all_gather(bundles); },
      [&](const Chunk& chunk, int) {
        rank_.gather_within(chunk.lanes);
        if (!is_one_machine()) rank_.move_memory(2 * chunk.bytes);
      });
}

}  // namespace coupler::bench::simulated

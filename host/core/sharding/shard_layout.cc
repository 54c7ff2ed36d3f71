#include "sharding/shard_layout.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

namespace coupler::sharding {
namespace {

// Runs smaller than this are packed: copying this much takes about as long as one message.
constexpr int64_t kSmallRun = 16384;

}  // namespace

ShardLayout::ShardLayout(const std::vector<ShardParameter>& parameters, bool whole_gradients,
                         int own_rank, int rank_count)
    : rank(own_rank), ranks(rank_count) {
  place_parts(parameters);
  std::vector<ShardRun> small;
  for (ShardRun& run : cut_runs(parameters)) {
    if (run.numel() < kSmallRun) {
      small.push_back(std::move(run));
    } else {
      add_transfer({std::move(run)}, parameters);
    }
  }
  if (!small.empty()) add_transfer(std::move(small), parameters);
  place_in_shard();
  place_in_staging(whole_gradients);
}

void ShardLayout::place_parts(const std::vector<ShardParameter>& parameters) {
  for (const ShardParameter& parameter : parameters) {
    ShardPart part;
    part.index = parameter.index;
    part.offset = aligned_elements(numel);
    part.numel = parameter.numel;
    part.trains = parameter.trains;
    part.begin = static_cast<int64_t>((*parameter.bounds)[static_cast<size_t>(rank)]);
    part.end = static_cast<int64_t>((*parameter.bounds)[static_cast<size_t>(rank) + 1]);
    numel = part.offset + part.numel;
    parts.push_back(part);
  }
  numel = aligned_elements(numel);
}

// Padding belongs to the owner of the part before it.
std::vector<ShardRun> ShardLayout::cut_runs(const std::vector<ShardParameter>& parameters) const {
  std::vector<ShardRun> runs;
  int owner = ranks;  // of the last piece; no piece yet: any owner is smaller
  int64_t end = 0;
  const auto finish = [&] {
    if (!runs.empty()) runs.back().bounds.resize(static_cast<size_t>(ranks) + 1, end);
  };
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::vector<uint64_t>& bounds = *parameters[i].bounds;
    for (int r = 0; r < ranks; ++r) {
      const auto first = static_cast<int64_t>(bounds[static_cast<size_t>(r)]);
      const auto last = static_cast<int64_t>(bounds[static_cast<size_t>(r) + 1]);
      if (first == last) continue;
      if (r < owner) {
        finish();
        runs.emplace_back();
      }
      // bounds.size() - 1 is the rank whose end is still open.
      std::vector<int64_t>& starts = runs.back().bounds;
      while (static_cast<int>(starts.size()) <= r) starts.push_back(parts[i].offset + first);
      owner = r;
      end = parts[i].offset + last;
    }
  }
  finish();
  return runs;
}

void ShardLayout::add_transfer(std::vector<ShardRun> runs,
                               const std::vector<ShardParameter>& parameters) {
  ShardTransfer transfer;
  transfer.counts.assign(static_cast<size_t>(ranks), 0);
  for (const ShardRun& run : runs) {
    transfer.numel += run.numel();
    for (int r = 0; r < ranks; ++r) {
      transfer.counts[static_cast<size_t>(r)] += static_cast<uint64_t>(run.count(r));
    }
    // A parameter's owners are in ascending order, so all of it is in one run.
    for (size_t i = 0; i < parts.size(); ++i) {
      const int64_t offset = parts[i].offset;
      const bool inside = offset >= run.begin() && offset < run.begin() + run.numel();
      transfer.trains |= inside && parameters[i].trains;
    }
  }
  transfer.even = std::adjacent_find(transfer.counts.begin(), transfer.counts.end(),
                                     std::not_equal_to<>()) == transfer.counts.end();
  transfer.runs = std::move(runs);
  transfers.push_back(std::move(transfer));
}

void ShardLayout::place_in_shard() {
  for (ShardTransfer& transfer : transfers) {
    transfer.shard_offset = aligned_elements(shard_numel);
    int64_t place = transfer.shard_offset;
    for (const ShardRun& run : transfer.runs) {
      const int64_t begin = run.bounds[static_cast<size_t>(rank)];
      const int64_t end = run.bounds[static_cast<size_t>(rank) + 1];
      for (ShardPart& part : parts) {
        const int64_t own = part.offset + part.begin;
        if (part.begin < part.end && own >= begin && own < end) {
          part.shard_offset = place + own - begin;
        }
      }
      place += end - begin;
    }
    shard_numel = place;
  }
}

// Runs keep their shape in staging. A run that is one whole parameter is staged only if `all`.
void ShardLayout::place_in_staging(bool all) {
  for (ShardTransfer& transfer : transfers) {
    for (ShardRun& run : transfer.runs) {
      for (size_t i = 0; i < parts.size(); ++i) {
        const bool is_run = parts[i].offset == run.begin() && parts[i].numel == run.numel();
        if (is_run && !all && !transfer.packed()) transfer.alone = static_cast<int>(i);
      }
      if (transfer.alone >= 0) continue;
      run.staging_offset = staging_numel;
      for (ShardPart& part : parts) {
        if (part.offset < run.begin() || part.offset >= run.begin() + run.numel()) continue;
        part.staging_offset = staging_numel + part.offset - run.begin();
      }
      staging_numel = aligned_elements(staging_numel + run.numel());
    }
  }
}

bool ShardLayout::trains() const {
  return std::any_of(parts.begin(), parts.end(), [](const ShardPart& part) { return part.trains; });
}

db_keep ShardLayout::keep(db_keep planned, bool converts, bool offloaded) const {
  // Nothing is sharded on a single rank: gathering would only copy what is already here.
  const bool always = planned == DB_KEEP_ALWAYS || (ranks == 1 && !offloaded);
  if (!always) return planned;
  // The intercept converts types, so a unit that needs it must be managed. A whole unit's memory is
  // also the optimizer's: if this rank's part is not one piece of it, the unit is managed, too.
  return converts || !in_place() ? DB_KEEP_STEP : DB_KEEP_ALWAYS;
}

std::vector<size_t> first_reduce_order(const std::vector<const ShardLayout*>& units) {
  std::vector<std::pair<size_t, size_t>> by_first;  // first parameter, unit
  for (size_t unit = 0; unit < units.size(); ++unit) {
    if (!units[unit]->trains()) continue;
    const auto& parts = units[unit]->parts;
    const auto first =
        std::min_element(parts.begin(), parts.end(),
                         [](const ShardPart& a, const ShardPart& b) { return a.index < b.index; });
    by_first.emplace_back(first->index, unit);
  }
  std::sort(by_first.rbegin(), by_first.rend());
  std::vector<size_t> result;
  result.reserve(by_first.size());
  for (const auto& [first, unit] : by_first) result.push_back(unit);
  return result;
}

std::vector<size_t> learned_reduce_order(std::vector<size_t> completed,
                                         const std::vector<size_t>& first) {
  const std::vector<size_t> listed = completed;
  std::copy_if(first.begin(), first.end(), std::back_inserter(completed), [&](size_t unit) {
    return std::find(listed.begin(), listed.end(), unit) == listed.end();
  });
  return completed;
}

}  // namespace coupler::sharding

// RankView: what one rank of a job sees of its configuration, as `coupler config check` collects it
// from all of them. Plain data; single-threaded.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "config/config.h"
#include "rendezvous/process_info.h"

namespace coupler::cli {

struct RankView {
  std::string host, version, file;
  std::string backend;  // "fsdp 0.1.0 over gloo_cpu 0.1.0"; "" where one process needs none
  std::string gpu;      // which of the machine's it would take; "" where the backend moves none
  // Of every key that is not at its default: the value, and where it comes from.
  std::map<std::string, std::pair<std::string, std::string>> settings;
  std::vector<std::string> problems;
};

// Loads and probes backend and base, reads their options, and looks at folders. What is wrong is in
// the problems. config: none where it could not be loaded, which is a problem of its own.
RankView look_around(const ProcessInfo& process, const std::optional<Config>& config);

std::string to_text(const RankView& view);  // JSON
RankView rank_view_of(const std::string& text);

// What is wrong with them, one sentence a problem with ranks and machines in front; views: by rank,
// nothing for one that never came.
std::vector<std::string> compare_views(const std::vector<std::optional<RankView>>& views);

// Problems of ranks, equal ones joined: "ranks 0, 1 on node1: …", "every rank: …".
std::vector<std::string> join_problems(
    const std::vector<std::optional<RankView>>& views,
    const std::vector<std::vector<std::string>>& problems_by_rank);

}  // namespace coupler::cli

// RankView: one rank's view of its configuration, which `coupler config check` collects from all
// ranks. Plain data; single-threaded.
#pragma once

#include <coupler/error.h>

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
  std::string backend;  // "wrapper 0.1.0 over transport 0.1.0"; "" if one process needs none
  std::string gpu;      // the machine's GPU that it would use; "" if it needs or sees none
  // The value and source of every key that is set.
  std::map<std::string, std::pair<std::string, std::string>> settings;
  std::vector<std::string> problems;
};

// Loads and probes backend and base, reads their options, and checks folders. Records what is wrong
// in problems. config: empty if it could not be loaded, which the caller reports.
RankView detect(const rendezvous::ProcessInfo& process,
                const std::optional<config::Config>& config);

// "train.toml:3:1: ": where a key was set; "" if it was not set.
std::string source_of(const config::Config& config, const std::string& key);
// An error's message and hint, in one line.
std::string sentence(const Error& error);

std::string to_text(const RankView& view);  // JSON
RankView rank_view_of(const std::string& text);

// What is wrong with the views, one sentence per problem with ranks and machines in front. views:
// by rank, empty for a rank that did not respond.
std::vector<std::string> compare_views(const std::vector<std::optional<RankView>>& views);

// The ranks' problems, with equal ones joined: "ranks 0, 1 on node1: …", "every rank: …".
std::vector<std::string> join_problems(
    const std::vector<std::optional<RankView>>& views,
    const std::vector<std::vector<std::string>>& problems_by_rank);

}  // namespace coupler::cli

#include "cli/launch/rank_exit.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "base/text.h"

namespace coupler::cli {
namespace {

constexpr int kPeerLost = 4;  // the exit code of a rank that lost a peer
constexpr size_t kQuotedLines = 8;

bool is_failure(const RankExit& end) { return end.status != 0; }

bool is_consequence(const RankExit& end) {
  return end.lost.empty() && exit_code_of(end.status) == kPeerLost;
}

std::optional<Deadline> when_first(const std::vector<RankExit>& ends,
                                   bool (*fits)(const RankExit&)) {
  const auto found = std::find_if(ends.begin(), ends.end(), fits);
  return found == ends.end() ? std::nullopt : std::optional(found->when);
}

}  // namespace

int exit_code_of(int status) {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

std::string describe_status(int status) {
  if (WIFSIGNALED(status)) {
    return fmt::format("was killed by signal {} ({})", WTERMSIG(status),
                       ::strsignal(WTERMSIG(status)));
  }
  const int code = WEXITSTATUS(status);
  return fmt::format("exited with code {}{}", code,
                     code == kPeerLost ? " (it lost a peer, or a deadline passed)" : "");
}

std::string start_key(int rank) { return fmt::format("{}{}", kStartPrefix, rank); }
std::string exit_key(int rank) { return fmt::format("{}{}", kEndPrefix, rank); }

std::optional<int> rank_in(std::string_view prefix, std::string_view key) {
  return key.starts_with(prefix) ? to_number<int>(key.substr(prefix.size())) : std::nullopt;
}

std::string encode(const RankExit& end) {
  auto text = fmt::format("{} {}\n", end.status, end.stopped ? 1 : 0);
  for (const auto& line : end.last_lines) {
    text += line + "\n";
  }
  return text;
}

RankExit decode_exit(int rank, const std::string& text) {
  RankExit end{.rank = rank, .when = std::chrono::steady_clock::now()};
  std::istringstream lines(text);
  std::string line;
  std::getline(lines, line);
  int stopped = 0;
  std::istringstream(line) >> end.status >> stopped;
  end.stopped = stopped != 0;
  while (std::getline(lines, line)) {
    end.last_lines.push_back(line);
  }
  return end;
}

std::string order_key(int number) { return fmt::format("coupler/launch/order/{}", number); }

void JobOutcome::record(RankExit end) { ends_.push_back(std::move(end)); }

void JobOutcome::record_order(const std::vector<int>& ranks) {
  order_.insert(order_.end(), ranks.begin(), ranks.end());
}

std::string JobOutcome::record_losses(const std::vector<store::PeerLoss>& losses) {
  std::string text;
  for (const auto& loss : losses) {
    record({.rank = loss.rank, .status = kPeerLost << 8, .lost = loss.text, .when = loss.when});
    text += fmt::format("coupler: {}; the job ends (backend.peer_timeout sets how long it waits)\n",
                        loss.text);
  }
  return text;
}

std::optional<Deadline> JobOutcome::first_failure() const { return when_first(ends_, is_failure); }

std::optional<Deadline> JobOutcome::first_cause() const {
  return when_first(ends_,
                    [](const RankExit& end) { return is_failure(end) && !is_consequence(end); });
}

bool JobOutcome::knows(int rank) const {
  return std::any_of(ends_.begin(), ends_.end(),
                     [&](const RankExit& end) { return end.rank == rank && end.lost.empty(); });
}

const RankExit* JobOutcome::cause() const {
  const RankExit* best = nullptr;
  const auto badness = [](const RankExit& end) {
    return end.stopped ? 0 : is_consequence(end) ? 1 : 2;
  };
  const auto is_earlier = [&](const RankExit& one, const RankExit& other) {
    const auto place = [&](int rank) { return std::find(order_.begin(), order_.end(), rank); };
    return place(one.rank) < place(other.rank);
  };
  for (const RankExit& end : ends_) {
    if (is_failure(end) && (best == nullptr || badness(end) > badness(*best) ||
                            (badness(end) == badness(*best) && is_earlier(end, *best)))) {
      best = &end;
    }
  }
  return best;
}

int JobOutcome::exit_code() const {
  const RankExit* blamed = cause();
  return blamed == nullptr ? 0 : exit_code_of(blamed->status);
}

std::string JobOutcome::json() const {
  const RankExit* blamed = cause();
  if (blamed == nullptr) return {};
  const nlohmann::json value = {
      {"rank", blamed->rank},
      {"exit_code", exit_code_of(blamed->status)},
      {"how", blamed->lost.empty() ? describe_status(blamed->status) : blamed->lost}};
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string JobOutcome::report(const std::map<int, std::string>& activities) const {
  const RankExit* blamed = cause();
  if (blamed == nullptr) {
    return {};
  }
  auto text = blamed->lost.empty()
                  ? fmt::format("coupler: rank {} {}\n{}", blamed->rank,
                                describe_status(blamed->status), quote_lines(blamed->last_lines))
                  : std::string();
  size_t stopped = 0;
  for (const RankExit& end : ends_) {
    if (end.stopped && end.rank != blamed->rank) {
      ++stopped;
    } else if (end.rank != blamed->rank && is_failure(end)) {
      text += fmt::format("  then rank {} {}\n", end.rank, describe_status(end.status));
    }
  }
  size_t stood = 0;
  for (const auto& [rank, activity] : activities) {
    if (rank != blamed->rank && ++stood <= kQuotedLines) {
      text += fmt::format("  rank {} was in {}\n", rank, activity);
    }
  }
  if (stood > kQuotedLines) {
    text += fmt::format("  and {} others were in an operation\n", stood - kQuotedLines);
  }
  if (stopped > 0) {
    text += fmt::format("  {} other rank{} stopped\n", stopped, stopped == 1 ? " was" : "s were");
  }
  return text;
}

std::string quote_lines(const std::deque<std::string>& lines) {
  if (lines.empty()) {
    return {};
  }
  std::string text = "  its last lines:\n";
  for (size_t i = lines.size() - std::min(lines.size(), kQuotedLines); i < lines.size(); ++i) {
    text += "    " + lines[i] + "\n";
  }
  return text;
}

}  // namespace coupler::cli

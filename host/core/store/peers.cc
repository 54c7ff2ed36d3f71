#include "store/peers.h"

#include <fmt/format.h>

#include <sstream>
#include <utility>

namespace coupler {

std::string encode(const PeerLoss& loss) {
  return fmt::format("{} {} {}", loss.rank, static_cast<int>(loss.reason), loss.text);
}

std::optional<PeerLoss> decode_loss(const std::string& text) {
  std::istringstream words(text);
  PeerLoss loss;
  int reason = 0;
  if (!(words >> loss.rank >> reason) || loss.rank < 0 || reason < 0 ||
      reason > static_cast<int>(PeerLoss::Reason::kUnreachable)) {
    return std::nullopt;
  }
  words.get();
  std::getline(words, loss.text, '\0');
  loss.reason = static_cast<PeerLoss::Reason>(reason);
  loss.when = std::chrono::steady_clock::now();
  return loss;
}

std::optional<PeerLoss> Peers::loss_of(int rank) const {
  const std::lock_guard lock(mutex_);
  const auto found = lost_.find(rank);
  return found == lost_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<PeerLoss> Peers::first_of(const std::vector<int>& ranks) const {
  const PeerLoss* first = nullptr;
  const auto order = [](const PeerLoss& loss) {
    return std::pair(loss.reason == PeerLoss::Reason::kLeft, loss.when);
  };
  for (const int rank : ranks) {
    const auto found = lost_.find(rank);
    if (found != lost_.end() && (first == nullptr || order(found->second) < order(*first))) {
      first = &found->second;
    }
  }
  return first == nullptr ? std::nullopt : std::optional(*first);
}

std::optional<PeerLoss> Peers::first_lost(const std::vector<int>& ranks) const {
  const std::lock_guard lock(mutex_);
  return first_of(ranks);
}

std::optional<PeerLoss> Peers::await_lost(const std::vector<int>& ranks,
                                          std::chrono::milliseconds most) const {
  std::unique_lock lock(mutex_);
  std::optional<PeerLoss> loss;
  changed_.wait_for(lock, most, [&] { return (loss = first_of(ranks)).has_value(); });
  return loss;
}

void Peers::add_standing(const void* key, std::function<std::string()> standing) {
  const std::lock_guard lock(standings_mutex_);
  standings_[key] = std::move(standing);
}

void Peers::remove_standing(const void* key) {
  const std::lock_guard lock(standings_mutex_);
  standings_.erase(key);
}

std::string Peers::standing() const {
  const std::lock_guard lock(standings_mutex_);
  std::string text;
  for (const auto& [key, part] : standings_) {
    const std::string more = part();
    text += (text.empty() || more.empty() ? "" : "; ") + more;
  }
  return text;
}

void Peers::lose(PeerLoss loss) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = lost_.find(loss.rank);
    if (found == lost_.end()) {
      lost_.emplace(loss.rank, std::move(loss));
    } else if (!found->second.is_for_good()) {
      found->second = std::move(loss);
    }
    lost_count_.store(lost_.size(), std::memory_order_release);
  }
  changed_.notify_all();
}

void Peers::came_back(int rank) {
  const std::lock_guard lock(mutex_);
  const auto found = lost_.find(rank);
  if (found != lost_.end() && !found->second.is_for_good()) {
    lost_.erase(found);
    lost_count_.store(lost_.size(), std::memory_order_release);
  }
}

}  // namespace coupler

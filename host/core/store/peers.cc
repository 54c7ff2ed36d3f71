#include "store/peers.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <cstdlib>
#include <exception>
#include <mutex>
#include <sstream>
#include <utility>

#include "base/log.h"
#include "store/client.h"
#include "store/failure_detector.h"

namespace coupler::store {

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

std::optional<PeerLoss> Peers::await_lost(const std::vector<int>& ranks,
                                          std::chrono::milliseconds most) const {
  std::unique_lock lock(mutex_);
  std::optional<PeerLoss> loss;
  changed_.wait_for(lock, most, [&] { return (loss = first_of(ranks)).has_value(); });
  return loss;
}

void Peers::add_activity(const void* key, std::function<std::string()> activity) {
  const std::lock_guard lock(activities_mutex_);
  activities_[key] = std::move(activity);
}

void Peers::remove_activity(const void* key) {
  const std::lock_guard lock(activities_mutex_);
  activities_.erase(key);
}

std::string Peers::activity() const {
  const std::lock_guard lock(activities_mutex_);
  std::string text;
  for (const auto& [key, part] : activities_) {
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

// The part of StoreClient that tracks the job's ranks: joining, the server's events about the
// others, and the watch over the rank that hosts the server.

using store_wire::Operation;
using store_wire::Reply;
using store_wire::Request;

namespace {

// Its reply is ignored; other ids count up from 1.
constexpr uint64_t kNobodysRequest = ~uint64_t{0};
// Limit for a message to a server that may not be reading.
constexpr auto kSayTime = std::chrono::seconds(5);
// How long a leaving rank waits for the server's acknowledgment.
constexpr auto kLeaveTime = std::chrono::milliseconds(300);

}  // namespace

void StoreClient::join(int rank) {
  Request request{
      .operation = Operation::kJoin,
      .key = fmt::format("rank {}", rank),
      .value = store_wire::encode(store_wire::Joining{rank, own_identity(), machine_identity()})};
  const auto reply = exchange(request, deadline_after(timeout_));
  auto joined = reply ? store_wire::decode_joined(reply->value) : std::nullopt;
  if (!joined) {
    throw_no_answer("join", request.key);
  }
  const std::lock_guard lock(mutex_);
  joined_ = std::move(joined);
  rank_ = rank;
}

void StoreClient::leave() {
  {
    const std::lock_guard lock(mutex_);
    if (rank_ < 0 || !lost_.empty()) {
      return;
    }
    rank_ = -1;
  }
  Request request{.operation = Operation::kLeave, .wait = std::uncaught_exceptions() > 0};
  try {
    exchange(request, deadline_after(kLeaveTime));
  } catch (const Error&) {
    return;  // the store is gone: there is no one left to tell
  }
}

void StoreClient::take_event(const Reply& event) {
  switch (static_cast<store_wire::Event>(event.number)) {
    case store_wire::Event::kAlive:
      try_send({.operation = Operation::kAlive});
      break;
    case store_wire::Event::kLost:
      if (auto loss = decode_loss(event.value)) {
        lose_peer(*std::move(loss));
      }
      break;
    case store_wire::Event::kLeft: {
      std::istringstream ranks(event.value);
      for (int rank = 0; ranks >> rank;) {
        const auto left = PeerLoss::Reason::kLeft;
        lose_peer({.rank = rank,
                   .reason = left,
                   .text = fmt::format("rank {} has left the job", rank),
                   .when = Clock::now()});
      }
      break;
    }
    case store_wire::Event::kCameBack:
      mark_returned(std::atoi(event.value.c_str()));
      break;
  }
}

// On the reading thread, which must not wait for the server to read: it may wait for this client.
// Whichever thread holds the lock is sending, so the server hears from this rank anyway.
void StoreClient::try_send(const Request& request) {
  const std::unique_lock lock(send_mutex_, std::try_to_lock);
  if (lock && link_->is_writable()) {
    const auto frame = sealer_->seal(store_wire::encode(request));
    link_->send(frame.data(), frame.size(), deadline_after(kSayTime));  // the reader sees failures
  }
}

void StoreClient::send_activity() {
  const std::string text = peers_->activity();
  int rank = -1;
  {
    const std::lock_guard lock(mutex_);
    rank = rank_;
  }
  if (rank >= 0 && !text.empty()) {
    try_send({.operation = Operation::kSet,
              .id = kNobodysRequest,
              .key = activity_key(rank),
              .value = text});
  }
}

// Each of the other ranks watches the rank that hosts the server.
void StoreClient::check_host(Clock::time_point& heard, LocalPauses& local_pauses) {
  const auto now = Clock::now();
  const store_wire::Joined& host = *joined_;
  heard += local_pauses.local_pause(now, store_wire::tick_of(host.limit));
  if (now - heard >= host.limit / 2) {
    try_send({.operation = Operation::kAlive});  // so that its machine has something to acknowledge
  }
  const bool here = host.machine == machine_identity();
  if (const auto reason =
          detect_failure({now - heard, link_->socket(), here ? &host.host : nullptr}, host.limit)) {
    if (!peers_->loss_of(host.host_rank)) {
      lose_peer({.rank = host.host_rank,
                 .reason = *reason,
                 .text = describe_loss(host.host_rank, host.host.pid, *reason),
                 .when = now});
    }
    lose("its host does not answer: " + peers_->loss_of(host.host_rank)->text);
  }
}

void StoreClient::mark_returned(int rank) {
  peers_->came_back(rank);
  const std::lock_guard lock(mutex_);
  if (peer_loss_ && peer_loss_->rank == rank && !peer_loss_->is_for_good()) {
    peer_loss_.reset();
  }
}

void StoreClient::lose_peer(PeerLoss loss) {
  peers_->lose(loss);
  if (loss.reason == PeerLoss::Reason::kLeft) {
    return;
  }
  log(LogLevel::kInfo, "store", loss.text);
  send_activity();
  const std::lock_guard lock(mutex_);
  if (!peer_loss_ || !peer_loss_->is_for_good()) {
    peer_loss_ = std::move(loss);
  }
  for (const auto& [id, pending] : pending_) {
    pending->done.notify_one();
  }
}

void StoreClient::throw_peer_lost(const std::string& key, const PeerLoss& loss) const {
  throw Error(ErrorCode::kPeerLost,
              loss.rank == rank_
                  ? fmt::format("the other ranks have given this one up: {}", loss.text)
                  : fmt::format("{}; this rank was waiting for '{}'", loss.text, key),
              {.rank = loss.rank,
               .subject = key,
               .hint = "look at the output of the lost rank; the survivors cannot continue "
                       "without it"});
}

std::shared_ptr<Peers> StoreClient::peers() const { return peers_; }

}  // namespace coupler::store

#include "intruder.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

namespace backend_test {
namespace {

// The number of connections to make to each target, in the order of Deed.
constexpr std::array<int64_t, kDeeds> kWanted = {16, 8, 8, 4, 4, 2, 3000};
constexpr int64_t kAtOnce = 256;  // of these per round, so that it looks around in between

constexpr auto kRest = std::chrono::milliseconds(1);          // pause after a refusal
constexpr auto kRemembered = std::chrono::milliseconds(100);  // how long a gone target is kept
constexpr size_t kSplicedAtMost = 8;                          // targets spliced with each other

bool on_network(const Endpoint& endpoint) {
  if (endpoint.family() != AF_INET) return false;
  const auto& v4 = reinterpret_cast<const sockaddr_in&>(endpoint.address);
  return (ntohl(v4.sin_addr.s_addr) >> 24) != 127 && v4.sin_addr.s_addr != 0;
}

}  // namespace

Intruder::Intruder(const std::atomic<unsigned>& deeds, Tally* tally, Board* own,
                   std::vector<const Board*> others)
    : deeds_(deeds), tally_(tally), own_(own), lines_(tally) {
  for (const Board* board : others) others_.emplace_back(board, 0);
}

void Intruder::go_on() {
  now_ = Clock::now();
  look();
  for (auto& [key, target] : targets_) {
    attack(target);
    // A path whose socket is gone is of no use: no one else can connect to it.
    if (target.local && !target.endpoint.is_path()) take(target);
    receive(target);
    turn();
  }
  if (has(Deed::kRelay)) splice();
  turn();
  forget();
}

void Intruder::turn() {
  for (const uint32_t number : lines_.turn()) {
    for (auto& [key, target] : targets_) {
      if (target.number == number) target.rest = now_ + kRest;
    }
  }
}

void Intruder::look() {
  const std::vector<Endpoint> listening = proc_.look(geteuid());
  ++tally_->looks;
  for (auto& [key, target] : targets_) target.there = !target.local;
  for (const Endpoint& endpoint : listening) find(endpoint, true);
  for (auto& [board, read] : others_) {
    for (const uint32_t end = board->count.load(); read != end; ++read) {
      const Board::Slot& slot = board->slots[read % Board::kRoom];
      Endpoint endpoint;
      endpoint.size = sizeof slot.address;
      reinterpret_cast<sockaddr_in&>(endpoint.address) = slot.address;
      find(endpoint, false).other_slot = &slot;
    }
  }
}

Intruder::Target& Intruder::find(const Endpoint& endpoint, bool local) {
  const auto [found, is_new] = targets_.try_emplace(endpoint.key());
  Target& target = found->second;
  target.there = true;
  if (!target.taken) target.seen = now_;
  if (!is_new) return target;
  ++tally_->endpoints;
  target.endpoint = endpoint;
  target.local = local;
  target.number = ++last_number_;
  if (local && on_network(endpoint)) publish(target);
  return target;
}

void Intruder::publish(Target& target) {
  const uint32_t next = own_->count.load();
  Board::Slot& slot = own_->slots[next % Board::kRoom];
  slot.address = reinterpret_cast<const sockaddr_in&>(target.endpoint.address);
  slot.taken = false;
  target.own_slot = &slot;
  own_->count.store(next + 1);
}

// A target on another machine is not visible in /proc; it is assumed open until it refuses.
bool Intruder::is_open(const Target& target) const {
  const bool taken =
      target.taken || (target.other_slot != nullptr && target.other_slot->taken.load());
  return target.there && !taken && now_ >= target.rest;
}

void Intruder::attack(Target& target) {
  if (!is_open(target)) return;
  // Each target gets a different deed first.
  for (size_t i = 0; i < kDeeds; ++i) {
    const auto deed = static_cast<Deed>((i + target.number) % kDeeds);
    if (!has(deed)) continue;
    const int64_t missing = kWanted[static_cast<size_t>(deed)] - lines_.open(target.number, deed);
    for (int64_t n = std::min(missing, kAtOnce); n > 0; --n) {
      int fd = -1;
      const Lines::Result result = lines_.connect(target.endpoint, target.number, deed, &fd);
      if (result == Lines::Result::kRefused) target.rest = now_ + kRest;
      if (result == Lines::Result::kStranger) target.rest = Clock::time_point::max();
      if (result != Lines::Result::kMade) break;
    }
  }
}

void Intruder::take(Target& target) {
  if (target.taken) return;
  if (target.socket < 0) {
    target.socket = socket(target.endpoint.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (target.socket < 0) return;
    const int on = 1;
    setsockopt(target.socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  }
  if (bind(target.socket, target.endpoint.raw(), target.endpoint.size) != 0) return;
  if (listen(target.socket, 64) != 0) {  // another process took it between the two calls
    close(target.socket);
    target.socket = -1;
    return;
  }
  target.taken = true;
  if (target.own_slot != nullptr) target.own_slot->taken = true;
  ++tally_->taken;
}

void Intruder::receive(Target& target) {
  if (!target.taken) return;
  for (int fd;
       (fd = accept4(target.socket, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0;) {
    ++tally_->visitors;
    const bool relays = has(Deed::kRelay);
    const int other = relays ? lines_.waiting_for_partner(target.number) : -1;
    if (other >= 0) {
      lines_.adopt(fd, target.number, Deed::kRelay);
      lines_.couple(fd, other);
      continue;
    }
    // One of the enabled deeds, in turn.
    auto deed = Deed::kHold;
    const auto turn = static_cast<size_t>(tally_->visitors.load());
    for (size_t i = 0; i < kDeeds; ++i) {
      const auto next = static_cast<Deed>((i + turn) % kDeeds);
      if (next != Deed::kRelay && has(next)) deed = next;
    }
    lines_.adopt(fd, target.number, deed);
  }
}

void Intruder::splice() {
  std::vector<const Target*> there;
  for (const auto& [key, target] : targets_) {
    if (is_open(target) && there.size() < kSplicedAtMost) there.push_back(&target);
  }
  for (const Target* first : there) {
    for (const Target* second : there) {
      if (first->number >= second->number) continue;
      if (!spliced_.emplace(uint64_t{first->number} << 32 | second->number, true).second) continue;
      int one = -1, other = -1;
      if (lines_.connect(first->endpoint, first->number, Deed::kRelay, &one) !=
              Lines::Result::kMade ||
          lines_.connect(second->endpoint, second->number, Deed::kRelay, &other) !=
              Lines::Result::kMade) {
        continue;
      }
      lines_.couple(one, other);
      ++tally_->spliced;
    }
  }
}

void Intruder::forget() {
  for (auto it = targets_.begin(); it != targets_.end();) {
    if (now_ - it->second.seen < kRemembered) {
      ++it;
      continue;
    }
    if (it->second.socket >= 0) close(it->second.socket);
    it = targets_.erase(it);
  }
}

}  // namespace backend_test

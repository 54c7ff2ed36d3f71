#include "store/members.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "store/session.h"

namespace coupler::store {
namespace {

using store_wire::Event;
using store_wire::Reply;
using store_wire::Status;

constexpr auto kLeavingTogether = std::chrono::milliseconds(20);

Reply event(Event what, std::string value) {
  return {
      .id = store_wire::kEventId, .number = static_cast<int64_t>(what), .value = std::move(value)};
}

}  // namespace

StoreMembers::StoreMembers(StoreHub& hub, boost::asio::io_context& io)
    : hub_(hub), timer_(io), leaving_timer_(io) {}

std::chrono::milliseconds StoreMembers::limit() const {
  // Five questions a second for each of thousands would occupy a core.
  const auto most = std::chrono::microseconds(800) * hub_.options.members;
  return hub_.options.peer_timeout.count() == 0
             ? std::chrono::milliseconds(0)
             : std::max(hub_.options.peer_timeout,
                        std::chrono::duration_cast<std::chrono::milliseconds>(most));
}

void StoreMembers::watch(int rank, ProcessIdentity process) {
  Member& member = members_[rank];
  if (member.sessions.empty()) {
    member.process = std::move(process);
    member.here = true;
    member.running = Clock::now();
    tick_later();
  }
}

Reply StoreMembers::join(uint64_t session, const store_wire::Request& request) {
  const auto refuse = [&](std::string reason) {
    return Reply{.status = Status::kRefused, .id = request.id, .value = std::move(reason)};
  };
  const auto joining = store_wire::decode_join(request.value);
  if (!joining || ranks_.contains(session)) {
    return refuse("a rank joins once, with its number, process and machine");
  }
  const int rank = joining->rank;
  Member& member = members_[rank];
  const bool left = member.loss && !member.loss->is_for_good();
  if (member.loss && !left) {
    return refuse(fmt::format("{}, so the job has given it up", member.loss->text));
  }
  if (!member.sessions.empty() && member.process.pid != joining->process.pid) {
    return refuse(fmt::format("rank {} is already process {}", rank, member.process.pid));
  }
  member.process = joining->process;
  member.here = joining->machine == machine_;
  member.sessions.emplace(session, Clock::now());
  ranks_.emplace(session, rank);
  if (left) {
    member.loss.reset();
    notify(event(Event::kCameBack, std::to_string(rank)), session);
  }
  // The losses that others learned of before it joined.
  const auto found = hub_.sessions.find(session);
  for (const auto& [other, its] : members_) {
    if (its.loss && found != hub_.sessions.end()) {
      found->second->answer(event(Event::kLost, encode(*its.loss)));
    }
  }
  tick_later();
  return {.id = request.id,
          .value = encode(store_wire::Joined{.host_rank = hub_.options.host_rank,
                                             .host = own_identity(),
                                             .machine = machine_,
                                             .limit = limit()})};
}

void StoreMembers::heard(uint64_t session) {
  if (const auto rank = ranks_.find(session); rank != ranks_.end()) {
    members_[rank->second].sessions[session] = Clock::now();
  }
}

void StoreMembers::leave(uint64_t session, bool failed) {
  const auto rank = remove_session(session);
  if (rank && members_[*rank].sessions.empty() && !members_[*rank].loss) {
    members_[*rank].running = Clock::now();
    lose(*rank, failed ? PeerLoss::Reason::kFailed : PeerLoss::Reason::kLeft);
  }
}

void StoreMembers::closed(uint64_t session) {
  const auto rank = remove_session(session);
  if (rank && !members_[*rank].loss) {
    lose(*rank, PeerLoss::Reason::kGone);
  }
}

std::optional<int> StoreMembers::remove_session(uint64_t session) {
  const auto found = ranks_.extract(session);
  if (!found) {
    return std::nullopt;
  }
  members_[found.mapped()].sessions.erase(session);
  return found.mapped();
}

void StoreMembers::stop() { stopped_ = true; }

void StoreMembers::tick_later() {
  if (ticking_ || hub_.options.peer_timeout.count() == 0) {
    return;
  }
  ticking_ = true;
  local_pauses_.observed(Clock::now());
  timer_.expires_after(tick());
  timer_.async_wait([this](boost::system::error_code failure) {
    ticking_ = false;
    if (!failure && !stopped_) {
      check(Clock::now());
      tick_later();
    }
  });
}

void StoreMembers::check(Clock::time_point now) {
  const auto local_pause = local_pauses_.local_pause(now, tick());
  ask_ = !ask_;
  for (auto& [rank, member] : members_) {
    member.running += local_pause;
    for (auto& [session, heard] : member.sessions) {
      heard += local_pause;
    }
    // A rank that has left may be stopped while it exits, and its launcher waits for its end.
    if (!member.loss || (member.here && !member.loss->is_for_good())) {
      check_member(rank, member, now);
    }
  }
}

void StoreMembers::check_member(int rank, Member& member, Clock::time_point now) {
  const ProcessIdentity* here = member.here ? &member.process : nullptr;
  if (member.sessions.empty()) {
    const char state = state_of(member.process);
    if (state != 'T') {
      member.running = now;
    }
    if (const auto reason = detect_failure({now - member.running, -1, here}, limit());
        reason == PeerLoss::Reason::kStopped) {
      lose(rank, *reason);
    }
    return;
  }
  for (const auto& [id, heard] : member.sessions) {
    const auto& session = hub_.sessions.at(id);
    if (const auto reason = detect_failure({now - heard, session->socket(), here}, limit())) {
      lose(rank, *reason);
      return;
    }
    if (ask_ && session->idle()) {
      session->answer(event(Event::kAlive, {}));
    }
  }
}

void StoreMembers::lose(int rank, PeerLoss::Reason reason) {
  if (stopped_) {
    return;
  }
  Member& member = members_[rank];
  member.loss = PeerLoss{.rank = rank,
                         .reason = reason,
                         .text = describe_loss(rank, member.process.pid, reason),
                         .when = Clock::now()};
  if (reason != PeerLoss::Reason::kLeft) {
    log(LogLevel::kInfo, "store", member.loss->text);
    notify(event(Event::kLost, encode(*member.loss)), 0);
  } else {
    leaving_.push_back(rank);
    if (leaving_.size() == 1) {
      leaving_timer_.expires_after(kLeavingTogether);
      leaving_timer_.async_wait([this](boost::system::error_code failure) {
        if (!failure) {
          notify_left();
        }
      });
    }
  }
  if (hub_.options.on_lost) {
    hub_.options.on_lost(*member.loss);
  }
}

void StoreMembers::notify_left() {
  std::string ranks;
  for (const int rank : std::exchange(leaving_, {})) {
    const Member& member = members_[rank];
    if (member.loss && member.loss->reason == PeerLoss::Reason::kLeft) {  // has not come back
      ranks += std::to_string(rank) + " ";
    }
  }
  notify(event(Event::kLeft, std::move(ranks)), 0);
}

void StoreMembers::notify(const Reply& event, uint64_t except) {
  for (const auto& [session, rank] : ranks_) {
    const auto found = hub_.sessions.find(session);
    if (session != except && found != hub_.sessions.end()) {
      found->second->answer(event);
    }
  }
}

}  // namespace coupler::store

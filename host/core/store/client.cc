#include "store/client.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>

#include "base/network.h"
#include "base/process.h"
#include "store/failure_detector.h"
#include "store/link.h"

namespace coupler::store {
namespace {

using store_wire::Operation;
using store_wire::Refusal;
using store_wire::Reply;
using store_wire::Request;
using store_wire::Side;
using store_wire::Status;

// How long the reading thread waits in receive_all once a frame has begun: its rest is on the way.
constexpr auto kFrameTimeout = std::chrono::seconds(30);
// A get() that does not wait still has to let the server answer.
constexpr auto kMinWait = std::chrono::seconds(5);
// After a loss: values that other ranks were about to set still arrive.
constexpr auto kAfterLoss = std::chrono::milliseconds(300);
// The longest pause between two attempts to connect.
constexpr auto kLongestPause = std::chrono::milliseconds(500);

void check_size(const char* what, const std::string& key, size_t size, size_t most) {
  if (size > most) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("the {} of {} bytes is too large for the store (at most {})", what, size, most),
        {.subject = key.substr(0, 64), .hint = "split it over several keys"});
  }
}

}  // namespace

StoreClient::StoreClient(const std::string& host, int port, const Bytes32& secret,
                         std::chrono::nanoseconds timeout, bool tls, Start start)
    : address_(is_local(host) ? host : address_text(host, port)),
      host_(host),
      port_(port),
      timeout_(timeout),
      derivation_key_(derive_key(secret, "coupler derived keys")),
      tls_(tls ? std::make_unique<StoreTls>(secret, StoreTls::Side::kClient) : nullptr) {
  connect(secret, deadline_after(timeout), start);
  reader_ = std::thread([this] {
    block_signals();
    read_replies();
  });
}

StoreClient::~StoreClient() {
  leave();
  link_->shutdown();  // ends the reading thread
  reader_.join();
}

std::optional<Bytes32> StoreClient::derived_key(std::string_view purpose) const {
  return coupler::derive_key(derivation_key_, purpose);
}

void StoreClient::connect(const Bytes32& secret, Deadline deadline, Start start) {
  // A flood of unauthenticated connections may displace this connection before it has
  // authenticated: try again.
  auto pause = std::chrono::milliseconds(2);
  while (true) {
    link_ = std::make_unique<StoreLink>(
        is_local(host_) ? connect_locally(host_, deadline)
                        : connect_tcp(host_, port_, deadline, start == Start::kWhenItListens));
    if (handshake(secret, deadline)) {
      return;
    }
    if (std::chrono::steady_clock::now() + pause >= deadline) {
      throw_lost(
          "it closed the connection during authentication (is it flooded with connections?)");
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, kLongestPause);
  }
}

bool StoreClient::handshake(const Bytes32& secret, Deadline deadline) {
  const auto check = [&](IoResult result) {
    if (result == IoResult::kTimeout) {
      throw Error(
          ErrorCode::kTimeout,
          fmt::format("the job's store at {} did not answer in time", address_),
          {.subject = address_, .hint = "check that this address is the store of a Coupler job"});
    }
    return result == IoResult::kOk;
  };
  bool refused = false;
  if (tls_ != nullptr && !check(link_->start_tls(*tls_, deadline, refused))) {
    if (refused) {
      throw_lost("TLS failed (the secret belongs to another job, or the store does not use TLS)");
    }
    return false;
  }
  std::array<uint8_t, store_wire::kHelloSize> hello{};
  if (!check(link_->receive(hello.data(), hello.size(), deadline))) {
    return false;
  }
  if (std::memcmp(hello.data(), store_wire::kMagic.data(), store_wire::kMagic.size()) != 0) {
    throw_lost("the listener is not a store of this version of Coupler");
  }
  Bytes32 server_nonce{};
  std::memcpy(server_nonce.data(), hello.data() + store_wire::kMagic.size(), server_nonce.size());
  const Bytes32 client_nonce = random_bytes32();
  const Bytes32 mine = store_wire::proof(secret, Side::kClient, server_nonce, client_nonce);
  std::array<uint8_t, store_wire::kProofSize> message{};
  std::memcpy(message.data(), client_nonce.data(), client_nonce.size());
  std::memcpy(message.data() + client_nonce.size(), mine.data(), mine.size());
  Bytes32 theirs{};
  if (!check(link_->send(message.data(), message.size(), deadline)) ||
      !check(link_->receive(theirs.data(), theirs.size(), deadline))) {
    return false;
  }
  const auto expected = store_wire::proof(secret, Side::kServer, server_nonce, client_nonce);
  if (!equal_constant_time(expected, theirs.data())) {
    throw_lost(theirs == store_wire::refusal(Refusal::kSecret)
                   ? "it refused the connection: the secret belongs to another job"
               : theirs == store_wire::refusal(Refusal::kFull)
                   ? "it refused the connection: it has too many already"
                   : "the listener does not know the job's secret");
  }
  sealer_.emplace(store_wire::frame_key(secret, Side::kClient, server_nonce, client_nonce));
  opener_.emplace(store_wire::frame_key(secret, Side::kServer, server_nonce, client_nonce));
  return true;
}

void StoreClient::read_replies() {
  std::string frame;
  auto heard = Clock::now();
  LocalPauses local_pauses;
  while (true) {
    int timeout = -1;
    {
      const std::lock_guard lock(mutex_);
      if (joined_ && joined_->host_rank >= 0 && joined_->host_rank != rank_ &&
          joined_->limit.count() > 0) {
        timeout = static_cast<int>(store_wire::tick_of(joined_->limit).count());
      }
    }
    if (!link_->wait_readable(timeout)) {
      check_host(heard, local_pauses);
      continue;
    }
    if (!read_frame(frame) || !take_reply(frame)) {
      return;
    }
    heard = Clock::now();
    local_pauses.observed(heard);
  }
}

bool StoreClient::read_frame(std::string& frame) {
  uint32_t length = 0;
  const auto deadline = deadline_after(kFrameTimeout);
  if (link_->receive(&length, sizeof length, deadline) != IoResult::kOk) {
    lose("the connection was closed");
    return false;
  }
  if (length > store_wire::kMaxFrame) {
    lose("it sent too large a frame");
    return false;
  }
  frame.resize(length + store_wire::kMacSize);
  if (link_->receive(frame.data(), frame.size(), deadline) != IoResult::kOk) {
    lose("the connection was closed");
    return false;
  }
  return true;
}

bool StoreClient::take_reply(const std::string& frame) {
  const auto body = opener_->open(frame);
  auto reply = body ? store_wire::decode_reply(*body) : std::nullopt;
  if (!reply) {
    lose("it sent a frame that is not authentic");
    return false;
  }
  if (reply->id == store_wire::kEventId) {
    take_event(*reply);
    return true;
  }
  const std::lock_guard lock(mutex_);
  if (const auto found = pending_.find(reply->id); found != pending_.end()) {
    found->second->reply = *std::move(reply);
    found->second->done.notify_one();
  }  // else the caller's deadline passed before
  return true;
}

void StoreClient::lose(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (lost_.empty()) {
    lost_ = reason;
  }
  link_->shutdown();
  if (joined_ && joined_->host_rank >= 0 && joined_->host_rank != rank_ &&
      !peers_->loss_of(joined_->host_rank)) {
    const auto gone = PeerLoss::Reason::kGone;
    peers_->lose({.rank = joined_->host_rank,
                  .reason = gone,
                  .text = describe_loss(joined_->host_rank, joined_->host.pid, gone),
                  .when = Clock::now()});
  }
  for (const auto& [id, pending] : pending_) {
    pending->done.notify_one();
  }
}

void StoreClient::throw_lost(const std::string& reason) const {
  throw Error(ErrorCode::kPeerLost,
              fmt::format("the job's store at {} is lost: {}", address_, reason),
              {.subject = address_,
               .hint = "the process that hosts it (the launcher, or rank 0) ended or stopped "
                       "answering: look at its messages"});
}

void StoreClient::send_frame(const Request& request, Deadline deadline) {
  const auto body = store_wire::encode(request);
  const std::lock_guard lock(send_mutex_);
  const auto frame = sealer_->seal(body);
  const auto result = link_->send(frame.data(), frame.size(), deadline);
  if (result != IoResult::kOk) {
    // Half a frame may have been sent: the connection is unusable.
    lose(result == IoResult::kTimeout ? "it did not accept the request before the deadline"
                                      : "the connection was closed");
  }
}

std::optional<Reply> StoreClient::exchange(Request& request, Deadline deadline) {
  Pending pending;
  std::unique_lock lock(mutex_);
  if (!lost_.empty()) {
    throw_lost(lost_);
  }
  request.id = next_id_++;
  pending_.emplace(request.id, &pending);
  lock.unlock();
  send_frame(request, deadline);
  lock.lock();
  while (!pending.reply && lost_.empty() && Clock::now() < deadline) {
    // A request that waits for another rank does not wait long once one is lost.
    const bool in_vain = request.wait && peer_loss_;
    const auto until = in_vain ? std::min(deadline, peer_loss_->when + kAfterLoss) : deadline;
    if (in_vain && Clock::now() >= until) {
      break;
    }
    pending.done.wait_until(lock, until);
  }
  pending_.erase(request.id);
  if (pending.reply) {
    if (pending.reply->status == Status::kRefused) {
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("the job's store refused key '{}': {}", request.key, pending.reply->value),
          {.subject = request.key, .hint = "store fewer or smaller values"});
    }
    return std::move(pending.reply);
  }
  if (!lost_.empty()) {
    throw_lost(lost_);
  }
  if (request.wait && peer_loss_ && Clock::now() < deadline) {
    const PeerLoss loss = *peer_loss_;
    lock.unlock();
    cancel(request.id);
    throw_peer_lost(request.key, loss);
  }
  return std::nullopt;
}

void StoreClient::throw_no_answer(const std::string& call, const std::string& key) const {
  throw Error(
      ErrorCode::kTimeout,
      fmt::format("the job's store at {} did not answer in time ({} '{}')", address_, call, key),
      {.subject = key, .hint = "raise backend.timeout, or look at the launcher"});
}

void StoreClient::cancel(uint64_t id) {
  send_frame({.operation = Operation::kCancel, .id = id}, deadline_after(kMinWait));
}

void StoreClient::set(const std::string& key, const std::string& value) {
  check_size("key", key, key.size(), store_wire::kMaxKey);
  check_size("value", key, value.size(), store_wire::kMaxValue);
  Request request{.operation = Operation::kSet, .key = key, .value = value};
  if (!exchange(request, deadline_after(timeout_))) {
    throw_no_answer("set", key);
  }
}

std::optional<std::string> StoreClient::get(const std::string& key,
                                            std::chrono::nanoseconds timeout) {
  check_size("key", key, key.size(), store_wire::kMaxKey);
  Request request{.operation = Operation::kGet, .key = key, .wait = timeout.count() > 0};
  auto reply = exchange(request, deadline_after(request.wait ? timeout : kMinWait));
  if (!reply && !request.wait) {
    throw_no_answer("get", key);
  }
  if (!reply) {
    cancel(request.id);
    return std::nullopt;
  }
  if (reply->status == Status::kAbsent) {
    return std::nullopt;
  }
  return std::move(reply->value);
}

std::vector<std::optional<std::string>> StoreClient::get_ranks(const std::string& prefix, int count,
                                                               std::chrono::nanoseconds timeout) {
  check_size("key", prefix, prefix.size() + 12, store_wire::kMaxKey);
  std::vector<std::optional<std::string>> values;
  Request request{.operation = Operation::kGetRanks,
                  .key = prefix,
                  .wait = timeout.count() > 0,
                  .count = static_cast<uint32_t>(std::max(count, 0))};
  // Usually once: what does not fit into one frame comes in the next.
  while (values.size() < request.count) {
    request.first = static_cast<uint32_t>(values.size());
    const auto reply = exchange(request, deadline_after(request.wait ? timeout : kMinWait));
    if (!reply && !request.wait) {
      throw_no_answer("get", prefix + "/…");
    }
    if (!reply) {
      cancel(request.id);  // then fetch those that are set
    }
    request.wait = false;
    if (!reply) {
      continue;
    }
    auto some = store_wire::decode_rank_values(reply->value);
    if (!some || some->empty() || some->size() > request.count - values.size()) {
      throw Error(ErrorCode::kInternal,
                  fmt::format("the job's store at {} sent a malformed answer to a request for the "
                              "ranks' '{}'",
                              address_, prefix),
                  {.subject = prefix, .hint = "run the same version of Coupler everywhere"});
    }
    values.insert(values.end(), std::make_move_iterator(some->begin()),
                  std::make_move_iterator(some->end()));
  }
  return values;
}

int64_t StoreClient::add(const std::string& key, int64_t delta) {
  check_size("key", key, key.size(), store_wire::kMaxKey);
  Request request{.operation = Operation::kAdd, .key = key, .delta = delta};
  const auto reply = exchange(request, deadline_after(timeout_));
  if (!reply) {
    throw_no_answer("add", key);
  }
  return reply->number;
}

}  // namespace coupler::store

#include "store/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <boost/asio/post.hpp>
#include <cstring>
#include <utility>

#include "base/log.h"

namespace coupler::store {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using store_wire::Operation;
using store_wire::Reply;
using store_wire::Status;

// The server stops reading from a client that leaves more than this much of its replies unread.
constexpr size_t kMaxOutgoing = 2 * store_wire::kMaxFrame;
// Pieces given to the kernel at once: a reply to kGetRanks is three.
constexpr size_t kPiecesAtOnce = 8;

}  // namespace

StoreHub::StoreHub(const Bytes32& job_secret, const StoreServerOptions& server_options,
                   boost::asio::io_context& io)
    : secret(job_secret),
      options(server_options),
      table(server_options.limits),
      members(*this, io) {
  if (options.tls) {
    tls.emplace(secret, StoreTls::Side::kServer);
  }
}

size_t StoreHub::max_unauthenticated() const {
  const size_t here = clients.load(std::memory_order_relaxed);
  const size_t to_come = options.members > here ? options.members - here : 0;
  return std::max<size_t>(1, std::min(options.limits.unauthenticated + to_come, descriptors));
}

void StoreHub::limit_unauthenticated(size_t most) {
  while (unauthenticated.size() > most) {
    const auto oldest = sessions.at(*unauthenticated.begin());
    if (std::has_single_bit(++dropped)) {
      log(LogLevel::kInfo, "store",
          fmt::format("dropped {} connection{} that had not authenticated, to make room", dropped,
                      dropped == 1 ? "" : "s"));
    }
    oldest->close();
  }
}

StoreSession::StoreSession(StoreHub& hub, StoreStream::Socket socket)
    : hub_(hub),
      id_(hub.next_id++),
      stream_(std::move(socket), hub.tls ? &*hub.tls : nullptr),
      timer_(stream_.get_executor()) {}

void StoreSession::start() {
  hub_.sessions.emplace(id_, shared_from_this());
  hub_.unauthenticated.insert(id_);
  timer_.expires_after(hub_.options.handshake_timeout);
  timer_.async_wait([self = shared_from_this()](error_code failure) {
    if (!failure && !self->authenticated_) {
      if (std::has_single_bit(++self->hub_.dropped)) {
        log(LogLevel::kInfo, "store", "dropped a connection that did not authenticate in time");
      }
      self->close();
    }
  });
  stream_.handshake(
      [self = shared_from_this()](error_code failure) { failure ? self->close() : self->greet(); });
}

void StoreSession::greet() {
  if (closed_) {
    return;
  }
  nonce_ = random_bytes32();
  std::string hello(store_wire::kMagic);
  hello.append(reinterpret_cast<const char*>(nonce_.data()), nonce_.size());
  send(std::move(hello));
  stream_.read(asio::buffer(proof_), [self = shared_from_this()](error_code failure, size_t) {
    failure ? self->close() : self->on_proof();
  });
}

void StoreSession::close() {
  if (closed_) {
    return;
  }
  closed_ = true;
  if (authenticated_) {
    hub_.clients.fetch_sub(1, std::memory_order_relaxed);
  }
  while (!waits_.empty()) {
    forget(waits_.begin()->first);
  }
  timer_.cancel();
  stream_.close();
  hub_.unauthenticated.erase(id_);
  hub_.sessions.erase(id_);
  hub_.members.closed(id_);
}

void StoreSession::on_proof() {
  if (closed_) {
    return;
  }
  Bytes32 client_nonce{};
  std::memcpy(client_nonce.data(), proof_.data(), client_nonce.size());
  using store_wire::Side;
  const auto& secret = hub_.secret;
  const auto expected = store_wire::proof(secret, Side::kClient, nonce_, client_nonce);
  if (!equal_constant_time(expected, proof_.data() + client_nonce.size())) {
    // Logged for the 1st, 2nd, 4th, 8th …: unauthenticated clients must not be able to fill the
    // log.
    if (std::has_single_bit(++hub_.refused)) {
      log(LogLevel::kWarning, "store",
          fmt::format("refused {} connection{} that did not know the job's secret", hub_.refused,
                      hub_.refused == 1 ? "" : "s"));
    }
    refuse(store_wire::Refusal::kSecret);
    return;
  }
  if (hub_.clients.load(std::memory_order_relaxed) >= hub_.options.limits.connections) {
    log(LogLevel::kWarning, "store", "refused a connection: there are too many");
    refuse(store_wire::Refusal::kFull);
    return;
  }
  authenticated_ = true;
  hub_.clients.fetch_add(1, std::memory_order_relaxed);
  hub_.unauthenticated.erase(id_);
  timer_.cancel();
  opener_.emplace(store_wire::frame_key(secret, Side::kClient, nonce_, client_nonce));
  sealer_.emplace(store_wire::frame_key(secret, Side::kServer, nonce_, client_nonce));
  const auto proof = store_wire::proof(secret, Side::kServer, nonce_, client_nonce);
  send(std::string(reinterpret_cast<const char*>(proof.data()), proof.size()));
  read_length();
}

void StoreSession::refuse(store_wire::Refusal reason) {
  const auto answer = store_wire::refusal(reason);
  refused_ = true;
  send(std::string(reinterpret_cast<const char*>(answer.data()), answer.size()));
}

void StoreSession::read_length() {
  if (closed_) {
    return;
  }
  if (outgoing_bytes_ > kMaxOutgoing) {
    reading_paused_ = true;  // write_next() resumes
    return;
  }
  stream_.read(asio::buffer(length_), [self = shared_from_this()](error_code failure, size_t) {
    if (failure) {
      self->close();
      return;
    }
    uint32_t length = 0;
    std::memcpy(&length, self->length_.data(), sizeof length);
    self->read_frame(length);
  });
}

void StoreSession::read_frame(uint32_t length) {
  if (length > store_wire::kMaxFrame) {
    log(LogLevel::kWarning, "store", "closed a connection that announced too large a frame");
    close();
    return;
  }
  incoming_.resize(length + store_wire::kMacSize);
  stream_.read(asio::buffer(incoming_), [self = shared_from_this()](error_code failure, size_t) {
    failure ? self->close() : self->on_frame();
  });
}

void StoreSession::on_frame() {
  if (closed_) {
    return;
  }
  const auto body = opener_->open(incoming_);
  auto request = body ? store_wire::decode_request(*body) : std::nullopt;
  if (!request) {
    log(LogLevel::kWarning, "store",
        body ? "closed a connection: malformed request" : "closed a connection: wrong MAC");
    close();
    return;
  }
  if (incoming_.capacity() > 65536) {
    incoming_ = std::string();  // large values are rare: do not keep the memory
  }
  hub_.members.heard(id_);
  handle(*std::move(request));
  read_length();
}

void StoreSession::handle(store_wire::Request request) {
  switch (request.operation) {
    case Operation::kSet:
      handle_set(request);
      break;
    case Operation::kGet:
      handle_get(request);
      break;
    case Operation::kAdd: {
      Reply reply{.id = request.id};
      if (auto reason = hub_.table.add(request.key, request.delta, reply.number)) {
        reply = {.status = Status::kRefused, .id = request.id, .value = *std::move(reason)};
      }
      answer(reply);
      break;
    }
    case Operation::kCancel:
      forget(request.id);
      break;
    case Operation::kGetRanks:
      handle_get_ranks(request);
      break;
    case Operation::kJoin:
      answer(hub_.members.join(id_, request));
      break;
    case Operation::kAlive:
      break;
    case Operation::kLeave:
      hub_.members.leave(id_, request.wait);
      answer({.id = request.id});
      break;
  }
}

void StoreSession::handle_set(store_wire::Request& request) {
  StoreTable::Woken woken;
  if (auto reason = hub_.table.set(request.key, std::move(request.value), woken)) {
    answer({.status = Status::kRefused, .id = request.id, .value = *std::move(reason)});
    return;
  }
  const std::string& value = *hub_.table.find(request.key);
  // Before the answer: with it the client may exit, and observers must know the value by then.
  if (hub_.options.on_set) {
    hub_.options.on_set(request.key, value);
  }
  const auto wake = [this](const std::vector<StoreTable::Waiter>& waiters, const auto& answer) {
    for (const auto& waiter : waiters) {
      if (const auto found = hub_.sessions.find(waiter.session); found != hub_.sessions.end()) {
        found->second->answer_wait(waiter.request, answer);
      }
    }
  };
  wake(woken.by_key, value);
  for (const auto& [ranks, waiters] : woken.by_ranks) {
    wake(waiters, hub_.table.rank_values(ranks, 0));
  }
  answer({.id = request.id});
}

void StoreSession::handle_get(const store_wire::Request& request) {
  if (const std::string* value = hub_.table.find(request.key)) {
    answer({.id = request.id, .value = *value});
  } else if (!request.wait) {
    answer({.status = Status::kAbsent, .id = request.id});
  } else if (waits_.size() >= hub_.options.limits.waits_per_connection) {
    answer({.status = Status::kRefused,
            .id = request.id,
            .value = "too many waiting requests on one connection"});
  } else if (waits_.emplace(request.id, request.key).second) {
    hub_.table.wait(request.key, {id_, request.id});
  }
}

void StoreSession::handle_get_ranks(const store_wire::Request& request) {
  const StoreTable::Ranks ranks{request.key, request.count};
  if (request.count == 0 || request.count > store_wire::kMaxRanks ||
      request.first >= request.count) {
    answer(
        {.status = Status::kRefused,
         .id = request.id,
         .value = fmt::format("invalid range of ranks: {} to {}", request.first, request.count)});
  } else if (request.wait && waits_.size() >= hub_.options.limits.waits_per_connection) {
    answer({.status = Status::kRefused,
            .id = request.id,
            .value = "too many waiting requests on one connection"});
  } else if (!request.wait || !hub_.table.wait(ranks, {id_, request.id})) {
    answer_ranks(request.id, hub_.table.rank_values(ranks, request.first));
  } else {
    waits_.insert_or_assign(request.id, ranks);
  }
}

void StoreSession::forget(uint64_t request) {
  if (const auto wait = waits_.extract(request)) {
    std::visit([&](const auto& what) { hub_.table.forget(what, {id_, request}); }, wait.mapped());
  }
}

void StoreSession::answer_wait(uint64_t request, const std::string& value) {
  waits_.erase(request);
  answer({.id = request, .value = value});
}

void StoreSession::answer_wait(uint64_t request,
                               const std::shared_ptr<const StoreTable::RankValues>& values) {
  waits_.erase(request);
  answer_ranks(request, values);
}

void StoreSession::answer(const Reply& reply) {
  if (!closed_) {
    send(sealer_->seal(store_wire::encode(reply)));
  }
}

// Like answer(), but the part that all get alike is neither copied nor hashed again.
void StoreSession::answer_ranks(uint64_t request,
                                const std::shared_ptr<const StoreTable::RankValues>& values) {
  if (closed_) {
    return;
  }
  auto rest = store_wire::encode_rest({.id = request, .number = values->values});
  const auto length = static_cast<uint32_t>(values->encoded.size() + rest.size());
  const auto digest = Digest(values->digest).update(rest).finish();
  const auto mac = sealer_->mac(length, digest);
  rest.append(reinterpret_cast<const char*>(mac.data()), mac.size());
  send(std::string(reinterpret_cast<const char*>(&length), sizeof length));
  send(Piece{{}, values});
  send(std::move(rest));
}

void StoreSession::send(Piece piece) {
  if (closed_) {
    return;
  }
  outgoing_bytes_ += piece.text().size();
  outgoing_.push_back(std::move(piece));
  if (writing_ == 0) {
    // Deferred: everything that one request causes goes out together.
    writing_ = outgoing_.size();
    asio::post(stream_.get_executor(), [self = shared_from_this()] { self->write_next(); });
  }
}

void StoreSession::write_next() {
  if (closed_) {
    return;
  }
  writing_ = std::min(outgoing_.size(), kPiecesAtOnce);
  std::array<asio::const_buffer, kPiecesAtOnce> buffers;
  for (size_t i = 0; i < writing_; ++i) {
    buffers[i] = asio::buffer(outgoing_[i].text());
  }
  stream_.write(buffers, [self = shared_from_this()](error_code failure, size_t sent) {
    if (failure) {
      self->close();
      return;
    }
    self->outgoing_bytes_ -= sent;
    self->outgoing_.erase(self->outgoing_.begin(),
                          self->outgoing_.begin() + static_cast<ptrdiff_t>(self->writing_));
    self->writing_ = 0;
    if (!self->outgoing_.empty()) {
      self->write_next();
    } else if (self->refused_) {
      self->close();
    }
    if (self->reading_paused_ && self->outgoing_bytes_ <= kMaxOutgoing) {
      self->reading_paused_ = false;
      self->read_length();
    }
  });
}

}  // namespace coupler::store

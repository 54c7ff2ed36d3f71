#include "rendezvous/store_session.h"

#include <fmt/format.h>

#include <bit>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <cstring>
#include <utility>

#include "log/log.h"

namespace coupler {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using store_wire::Operation;
using store_wire::Reply;
using store_wire::Status;

// A client that does not take its replies is not listened to beyond this much.
constexpr size_t kMaxOutgoing = 2 * store_wire::kMaxFrame;

}  // namespace

void StoreHub::limit_strangers(size_t most) {
  while (strangers.size() > most) {
    const auto oldest = sessions.at(*strangers.begin());
    oldest->close();
  }
}

StoreSession::StoreSession(StoreHub& hub, asio::ip::tcp::socket socket)
    : hub_(hub), id_(hub.next_id++), socket_(std::move(socket)), timer_(socket_.get_executor()) {}

void StoreSession::start() {
  hub_.sessions.emplace(id_, shared_from_this());
  hub_.strangers.insert(id_);
  nonce_ = random_bytes32();
  std::string hello(store_wire::kMagic);
  hello.append(reinterpret_cast<const char*>(nonce_.data()), nonce_.size());
  send(std::move(hello));
  timer_.expires_after(hub_.options.handshake_timeout);
  timer_.async_wait([self = shared_from_this()](error_code failure) {
    if (!failure && !self->authenticated_) {
      log(LogLevel::kInfo, "store", "dropped a connection that did not authenticate in time");
      self->close();
    }
  });
  asio::async_read(socket_, asio::buffer(proof_),
                   [self = shared_from_this()](error_code failure, size_t) {
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
  for (const auto& [request, key] : waits_) {
    hub_.table.forget(key, {id_, request});
  }
  waits_.clear();
  timer_.cancel();
  error_code ignored;  // closing has no other outcome
  socket_.close(ignored);
  hub_.strangers.erase(id_);
  hub_.sessions.erase(id_);
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
    // Said for the 1st, 2nd, 4th, 8th …: a stranger does not get to fill the log.
    if (std::has_single_bit(++hub_.refused)) {
      log(LogLevel::kWarning, "store",
          fmt::format("refused {} connection{} without knowledge of the job's secret", hub_.refused,
                      hub_.refused == 1 ? "" : "s"));
    }
    close();
    return;
  }
  if (hub_.clients.load(std::memory_order_relaxed) >= hub_.options.limits.connections) {
    log(LogLevel::kWarning, "store", "refused a connection: there are too many");
    close();
    return;
  }
  authenticated_ = true;
  hub_.clients.fetch_add(1, std::memory_order_relaxed);
  hub_.strangers.erase(id_);
  timer_.cancel();
  opener_.emplace(store_wire::frame_key(secret, Side::kClient, nonce_, client_nonce));
  sealer_.emplace(store_wire::frame_key(secret, Side::kServer, nonce_, client_nonce));
  const auto proof = store_wire::proof(secret, Side::kServer, nonce_, client_nonce);
  send(std::string(reinterpret_cast<const char*>(proof.data()), proof.size()));
  read_length();
}

void StoreSession::read_length() {
  if (closed_) {
    return;
  }
  if (outgoing_bytes_ > kMaxOutgoing) {
    reading_paused_ = true;  // write_next() goes on
    return;
  }
  asio::async_read(socket_, asio::buffer(length_),
                   [self = shared_from_this()](error_code failure, size_t) {
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
  asio::async_read(socket_, asio::buffer(incoming_),
                   [self = shared_from_this()](error_code failure, size_t) {
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
    incoming_ = std::string();  // large values are rare: do not keep their room
  }
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
      if (auto wait = waits_.extract(request.id)) {
        hub_.table.forget(wait.mapped(), {id_, request.id});
      }
      break;
  }
}

void StoreSession::handle_set(store_wire::Request& request) {
  std::vector<StoreTable::Waiter> woken;
  if (auto reason = hub_.table.set(request.key, std::move(request.value), woken)) {
    answer({.status = Status::kRefused, .id = request.id, .value = *std::move(reason)});
    return;
  }
  const std::string& value = *hub_.table.find(request.key);
  // Before the answer: who has it may end, and whoever notices that must find the value known.
  if (hub_.options.on_set) {
    hub_.options.on_set(request.key, value);
  }
  for (const auto& waiter : woken) {
    if (const auto found = hub_.sessions.find(waiter.session); found != hub_.sessions.end()) {
      found->second->answer_wait(waiter.request, value);
    }
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
            .value = "too many keys are waited for on one connection"});
  } else if (waits_.emplace(request.id, request.key).second) {
    hub_.table.wait(request.key, {id_, request.id});
  }
}

void StoreSession::answer_wait(uint64_t request, const std::string& value) {
  waits_.erase(request);
  answer({.id = request, .value = value});
}

void StoreSession::answer(const Reply& reply) {
  if (!closed_) {
    send(sealer_->seal(store_wire::encode(reply)));
  }
}

void StoreSession::send(std::string bytes) {
  outgoing_bytes_ += bytes.size();
  outgoing_.push_back(std::move(bytes));
  if (outgoing_.size() == 1) {
    write_next();
  }
}

void StoreSession::write_next() {
  asio::async_write(socket_, asio::buffer(outgoing_.front()),
                    [self = shared_from_this()](error_code failure, size_t) {
                      if (failure) {
                        self->close();
                        return;
                      }
                      self->outgoing_bytes_ -= self->outgoing_.front().size();
                      self->outgoing_.pop_front();
                      if (self->closed_) {
                        return;
                      }
                      if (!self->outgoing_.empty()) {
                        self->write_next();
                      }
                      if (self->reading_paused_ && self->outgoing_bytes_ <= kMaxOutgoing) {
                        self->reading_paused_ = false;
                        self->read_length();
                      }
                    });
}

}  // namespace coupler

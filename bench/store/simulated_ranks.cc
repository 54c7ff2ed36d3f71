#include "simulated_ranks.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/file_descriptor.h"
#include "store/wire.h"

namespace coupler {
namespace {

using namespace store_wire;
using Kind = RendezvousPlan::Kind;

constexpr auto kDeadline = std::chrono::seconds(120);

class Rank {
 public:
  Rank(const RendezvousPlan& plan, const Bytes32& secret, const std::string& expected, int rank)
      : plan_(plan), secret_(secret), expected_(expected), rank_(rank) {}

  bool connect(const sockaddr_in& address) {
    fd_.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int on = 1;
    ::setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd_ && (::connect(fd_.get(), reinterpret_cast<const sockaddr*>(&address),
                             sizeof address) == 0 ||
                   errno == EINPROGRESS);
  }

  int fd() const { return fd_.get(); }
  bool done() const { return done_; }

  // Reads and answers pending data. Returns the problem, or "".
  std::string advance() {
    std::array<char, 1 << 16> bytes;
    while (!done_) {
      const ssize_t got = ::recv(fd_.get(), bytes.data(), bytes.size(), 0);
      if (got < 0 && errno == EAGAIN) {
        return "";
      }
      if (got <= 0) {
        return "the connection was closed";
      }
      in_.append(bytes.data(), static_cast<size_t>(got));
      if (auto problem = consume(); !problem.empty()) {
        return problem;
      }
    }
    return "";
  }

 private:
  std::string consume() {
    while (!done_) {
      const size_t needed = !sealer_ && !greeted_ ? kHelloSize
                            : !sealer_            ? 32
                            : in_.size() < 4      ? 4
                                                  : 4 + frame_length() + kMacSize;
      if (in_.size() < needed) {
        in_.reserve(needed);
        return "";
      }
      const std::string problem = !greeted_ ? on_hello()
                                  : !sealer_
                                      ? on_proof()
                                      : on_frame(std::string_view(in_).substr(4, needed - 4));
      if (!problem.empty()) {
        return problem;
      }
      in_.erase(0, needed);
    }
    in_ = std::string();
    return "";
  }

  uint32_t frame_length() const {
    uint32_t length = 0;
    std::memcpy(&length, in_.data(), sizeof length);
    return length;
  }

  std::string on_hello() {
    if (std::string_view(in_).substr(0, kMagic.size()) != kMagic) {
      return "the server is not a store";
    }
    std::memcpy(server_nonce_.data(), in_.data() + kMagic.size(), server_nonce_.size());
    nonce_ = random_bytes32();
    const auto mine = proof(secret_, Side::kClient, server_nonce_, nonce_);
    std::string message(reinterpret_cast<const char*>(nonce_.data()), nonce_.size());
    message.append(reinterpret_cast<const char*>(mine.data()), mine.size());
    greeted_ = true;
    return write(message);
  }

  std::string on_proof() {
    const auto expected = proof(secret_, Side::kServer, server_nonce_, nonce_);
    if (!equal_constant_time(expected, reinterpret_cast<const uint8_t*>(in_.data()))) {
      return "the server's proof is wrong";
    }
    sealer_.emplace(frame_key(secret_, Side::kClient, server_nonce_, nonce_));
    opener_.emplace(frame_key(secret_, Side::kServer, server_nonce_, nonce_));
    std::string requests =
        sealer_->seal(encode(Request{.operation = Operation::kSet,
                                     .id = 1,
                                     .key = fmt::format("{}/{}", plan_.name, rank_),
                                     .value = own_value()}));
    if (plan_.kind == Kind::kOneByOne && rank_ == 0) {
      requests += ask_for(0);
    } else if (plan_.kind == Kind::kAll || rank_ == 0) {
      requests += sealer_->seal(encode(Request{.operation = Operation::kGetRanks,
                                               .id = 2,
                                               .key = plan_.name,
                                               .wait = true,
                                               .count = static_cast<uint32_t>(plan_.ranks)}));
    } else {
      requests += sealer_->seal(encode(Request{
          .operation = Operation::kGet, .id = 2, .key = plan_.name + "/verdict", .wait = true}));
    }
    return write(requests);
  }

  std::string on_frame(std::string_view frame) {
    const auto body = opener_->open(frame);
    // Long replies are compared in place: copying them thousands of times on one machine would be
    // our cost, not the store's.
    if (body && body->size() > expected_.size() && plan_.kind == Kind::kAll &&
        body->substr(sizeof(uint32_t), expected_.size()) == expected_) {
      return conclude();
    }
    auto reply = body ? decode_reply(*body) : std::nullopt;
    if (!reply || reply->status != Status::kOk) {
      return "a reply is not authentic, or reports an error";
    }
    if (reply->id == 1) {
      return "";  // the reply to the set
    }
    if (reply->id == 3) {
      done_ = true;  // the verdict is published
      return "";
    }
    if (plan_.kind != Kind::kAll && rank_ != 0) {
      done_ = true;
      return reply->value == "ok" ? "" : "wrong verdict";
    }
    if (plan_.kind == Kind::kOneByOne) {
      if (reply->value != value_of_rank(next_, plan_.value_bytes)) {
        return "wrong value";
      }
      return ++next_ < plan_.ranks ? write(ask_for(next_)) : conclude();
    }
    if (reply->value != expected_) {
      return "wrong values of all ranks";
    }
    return conclude();
  }

  std::string conclude() {
    if (plan_.kind == Kind::kAll) {
      done_ = true;
      return "";
    }
    return write(sealer_->seal(encode(Request{
        .operation = Operation::kSet, .id = 3, .key = plan_.name + "/verdict", .value = "ok"})));
  }

  std::string own_value() const { return value_of_rank(rank_, plan_.value_bytes); }

  std::string ask_for(int rank) {
    return sealer_->seal(encode(Request{.operation = Operation::kGet,
                                        .id = 10 + static_cast<uint64_t>(rank),
                                        .key = fmt::format("{}/{}", plan_.name, rank),
                                        .wait = true}));
  }

  // The send buffer of a fresh socket is large enough for a rank's requests.
  std::string write(const std::string& bytes) {
    const ssize_t sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    return sent == static_cast<ssize_t>(bytes.size()) ? "" : "a request was not sent completely";
  }

  const RendezvousPlan& plan_;
  const Bytes32& secret_;
  const std::string& expected_;  // all ranks' values, in wire format
  const int rank_;
  UniqueFd fd_;
  bool greeted_ = false;
  bool done_ = false;
  int next_ = 0;
  Bytes32 server_nonce_{}, nonce_{};
  std::optional<FrameSealer> sealer_;
  std::optional<FrameOpener> opener_;
  std::string in_;
};

// Every threads-th rank, starting at `first`.
class RankGroup {
 public:
  RankGroup(const RendezvousPlan& plan, const Bytes32& secret, const std::string& expected,
            int first)
      : poll_(::epoll_create1(EPOLL_CLOEXEC)) {
    for (int rank = first; rank < plan.ranks; rank += plan.threads) {
      ranks_.push_back(std::make_unique<Rank>(plan, secret, expected, rank));
    }
  }

  std::string run(const sockaddr_in& address) {
    const auto deadline = std::chrono::steady_clock::now() + kDeadline;
    size_t left = ranks_.size();
    size_t connected = 0;
    std::array<epoll_event, 64> events;
    while (left > 0) {
      // A few at a time: the listener's queue is finite.
      for (size_t i = 0; i < 64 && connected < ranks_.size(); ++i, ++connected) {
        epoll_event event{.events = EPOLLIN, .data = {.ptr = ranks_[connected].get()}};
        if (!ranks_[connected]->connect(address) ||
            ::epoll_ctl(poll_.get(), EPOLL_CTL_ADD, ranks_[connected]->fd(), &event) != 0) {
          return fmt::format("cannot connect: {}", std::strerror(errno));
        }
      }
      const int ready = ::epoll_wait(poll_.get(), events.data(), static_cast<int>(events.size()),
                                     connected < ranks_.size() ? 0 : 1000);
      for (int i = 0; i < ready; ++i) {
        auto* rank = static_cast<Rank*>(events[static_cast<size_t>(i)].data.ptr);
        if (rank->done()) {
          return "a rank received data after it was done";
        }
        if (auto problem = rank->advance(); !problem.empty()) {
          return problem;
        }
        left -= rank->done() ? 1 : 0;
      }
      if (std::chrono::steady_clock::now() > deadline) {
        return fmt::format("{} ranks have not met in time", left);
      }
    }
    return "";
  }

  int met() const {
    int count = 0;
    for (const auto& rank : ranks_) {
      count += rank->done() ? 1 : 0;
    }
    return count;
  }

 private:
  UniqueFd poll_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace

std::string value_of_rank(int rank, size_t bytes) {
  std::string value(bytes, static_cast<char>('a' + rank % 26));
  const auto number = std::to_string(rank);
  return value.replace(0, std::min(number.size(), bytes), number.substr(0, bytes));
}

RendezvousResult meet(const std::string& host, int port, const Bytes32& secret,
                      const RendezvousPlan& plan) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  ::inet_pton(AF_INET, host.c_str(), &address.sin_addr);
  std::string expected;
  for (int rank = 0; rank < plan.ranks; ++rank) {
    append_rank_value(expected, value_of_rank(rank, plan.value_bytes));
  }
  std::vector<std::unique_ptr<RankGroup>> groups;
  for (int first = 0; first < plan.threads; ++first) {
    groups.push_back(std::make_unique<RankGroup>(plan, secret, expected, first));
  }
  RendezvousResult result;
  std::mutex mutex;
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  for (auto& group : groups) {
    threads.emplace_back([&, group = group.get()] {
      const auto problem = group->run(address);
      const std::lock_guard lock(mutex);
      if (result.problem.empty()) {
        result.problem = problem;
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  for (const auto& group : groups) {
    result.met += group->met();
  }
  return result;
}

}  // namespace coupler

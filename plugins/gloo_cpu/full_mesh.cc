#include "gloo_cpu/full_mesh.h"

#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <list>
#include <optional>
#include <utility>

#include "common/handshake.h"
#include "common/op.h"
#include "gloo_cpu/endpoint.h"

namespace db::gloo_cpu {
namespace {

constexpr int64_t kMillisecond = 1'000'000;
// How many unauthenticated connections may be open, and for how long.
constexpr size_t kMaxUnauthenticated = 256;
constexpr int64_t kStrangersTime = 2'000 * kMillisecond;
// When that many are open, connections at least this old are dropped; one that looks like a rank
// may stay longer.
constexpr int64_t kMinHandshakeNs = 100 * kMillisecond;
constexpr int64_t kMinHandshakeNsGreeted = 400 * kMillisecond;
constexpr int kAcceptedAtOnce = 16;
constexpr int64_t kFirstPause = kMillisecond / 2;  // before a connection is tried again
constexpr int64_t kLongestPause = 50 * kMillisecond;

const char* protect_name(Protect protect) {
  return protect == Protect::kTls ? "tls" : protect == Protect::kMac ? "mac" : "none";
}

std::string rank_text(int32_t rank) { return "rank " + std::to_string(rank); }

Failure never_came(int32_t rank, const std::string& what) {
  return Failure::make(
      DB_ERR_TIMEOUT,
      "gloo_cpu: " + rank_text(rank) + " " + what +
          " before the timeout; check that it is running and uses the same backend",
      0, rank);
}

Failure system_failure(const std::string& what, int error) {
  return Failure::make(DB_ERR_SYSTEM, "gloo_cpu: " + what + ": " + std::strerror(error), 0, -1,
                       error);
}

// A quarter of the descriptors this process may open, at most kMaxUnauthenticated.
size_t max_unauthenticated() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 16;
  return std::clamp<size_t>(limit.rlim_cur / 4, 4, kMaxUnauthenticated);
}

// A connection that is not authenticated yet.
struct Attempt {
  Handshake handshake;
  std::unique_ptr<Connection> connection;  // set after the handshake
  int64_t began_ns = 0;
  bool over_network = false;

  int fd() const { return connection != nullptr ? connection->fd() : handshake.fd(); }
  short events() const {
    return connection != nullptr ? connection->tls()->events() : handshake.events();
  }
};

// A rank below this one, which this rank connects to.
struct Target {
  Endpoint endpoint;
  bool over_network = false;
  bool under_way = false;
  int64_t next_ns = 0;
  int64_t pause_ns = kFirstPause;
  std::string problem;  // of the last attempt
};

}  // namespace

class FullMeshBuilder {
 public:
  FullMeshBuilder(const FullMeshOptions& options, const BootstrapStore& store, FullMesh* mesh)
      : options_(options),
        store_(store),
        mesh_(*mesh),
        max_unauthenticated_(max_unauthenticated()) {
    self_.rank = options.rank;
    self_.size = options.size;
    self_.backend = "gloo_cpu";
    self_.mode = static_cast<uint32_t>(options.protect);
    mesh_.connections_.resize(static_cast<size_t>(options.size));
    missing_ = options.size - 1;
  }

  Failure build();

 private:
  Failure prepare();
  Failure find_targets();
  Failure open_attempts(int64_t now);
  Failure open_attempt(int32_t rank, int64_t now);
  Failure not_listening(int32_t rank, const Address& address);
  void accept_some(size_t listener, int64_t now);
  void drop_unauthenticated(int64_t now);
  bool is_full() const { return unauthenticated_ >= max_unauthenticated_; }
  Failure wait(int64_t now);
  Failure advance(Attempt& attempt, bool* over);
  std::string mismatch(const Handshake& handshake) const;
  Failure finish_handshake(Attempt& attempt, bool* over);
  Failure lose(Attempt& attempt, const std::string& problem);
  Failure too_late() const;

  const FullMeshOptions& options_;
  const BootstrapStore& store_;
  FullMesh& mesh_;
  size_t max_unauthenticated_;  // lowered when descriptors run out
  HandshakeSelf self_;
  Listener listener_;
  std::vector<Target> targets_;  // by rank
  std::list<Attempt> attempts_;  // oldest first
  size_t unauthenticated_ = 0;   // accepted attempts
  int64_t accept_after_ns_ = 0;  // set when descriptors have run out
  int32_t missing_ = 0;
};

Failure FullMeshBuilder::prepare() {
  if (Failure failure = Listener::open(options_.interface_name, &listener_); !failure.ok())
    return failure;
  bool has_key = false;
  if (Failure failure = store_.derive_key("gloo_cpu", self_.key.data(), &has_key); !failure.ok())
    return failure;
  if (options_.protect != Protect::kNone) {
    if (!has_key) {
      return Failure::make(
          DB_ERR_UNSUPPORTED,
          "gloo_cpu: option protect needs a job with a secret, but this job's host "
          "has none; set it to \"none\"");
    }
    mesh_.tls_ = make_tls_context(options_.protect);
    mesh_.protect_ = options_.protect;
  }
  Endpoint announced = listener_.endpoint();
  announced.size = options_.size;
  return store_.set("mesh/" + std::to_string(options_.rank), announced.encode());
}

Failure FullMeshBuilder::find_targets() {
  for (int32_t rank = 0; rank < options_.rank; ++rank) {
    std::string text;
    const int64_t left = std::max<int64_t>(options_.deadline_ns - now_ns(), 0);
    if (Failure failure = store_.get("mesh/" + std::to_string(rank), left, &text); !failure.ok()) {
      if (failure.status != DB_ERR_TIMEOUT && failure.status != DB_ERR_NOT_FOUND) return failure;
      return never_came(rank, "did not announce itself in the store");
    }
    const std::optional<Endpoint> endpoint = Endpoint::decode(text);
    if (!endpoint) {
      return Failure::make(DB_ERR_MISMATCH,
                           "gloo_cpu: " + rank_text(rank) +
                               " announced itself in a format that this version does not know; use "
                               "the same version of gloo_cpu on all machines",
                           0, rank);
    }
    if (endpoint->size != options_.size) {
      return Failure::make(
          DB_ERR_MISMATCH,
          "gloo_cpu: " + rank_text(rank) + " announced itself with a different number of ranks", 0,
          rank);
    }
    Target& target = targets_.emplace_back();
    target.endpoint = *endpoint;
    target.over_network =
        !options_.interface_name.empty() && endpoint->machine != listener_.endpoint().machine;
  }
  return {};
}

// A living rank's listener stays open until this rank is connected to it.
Failure FullMeshBuilder::not_listening(int32_t rank, const Address& address) {
  Target& target = targets_[static_cast<size_t>(rank)];
  if (!target.over_network && !options_.interface_name.empty() &&
      !target.endpoint.network.empty()) {
    // Virtual machines cloned while running report the same machine identity.
    target.over_network = true;
    return {};
  }
  return Failure::make(
      DB_ERR_PEER_LOST,
      "gloo_cpu: " + rank_text(rank) + " exited while connecting" +
          (target.over_network ? "" : ", or runs on another machine (then set backend.interface)") +
          ": no process listens at " + address.text() +
          (target.problem.empty() ? "" : "; the attempt before failed, too: " + target.problem),
      0, rank, ECONNREFUSED);
}

Failure FullMeshBuilder::open_attempts(int64_t now) {
  for (int32_t rank = 0; rank < options_.rank; ++rank) {
    const Target& target = targets_[static_cast<size_t>(rank)];
    if (target.under_way || target.next_ns > now ||
        mesh_.connections_[static_cast<size_t>(rank)] != nullptr) {
      continue;
    }
    if (Failure failure = open_attempt(rank, now); !failure.ok()) return failure;
  }
  return {};
}

Failure FullMeshBuilder::open_attempt(int32_t rank, int64_t now) {
  Target& target = targets_[static_cast<size_t>(rank)];
  std::optional<Address> address = target.over_network
                                       ? parse_address(target.endpoint.network)
                                       : Address::unix_path(target.endpoint.unix_path);
  if (!address) {
    return Failure::make(DB_ERR_INVALID_ARGUMENT,
                         "gloo_cpu: " + rank_text(rank) +
                             " is on another machine and does not listen on a network; set the "
                             "interface (backend.interface) on every machine",
                         0, rank);
  }
  Descriptor fd(socket(address->family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return system_failure("cannot create a socket", errno);
  if (::connect(fd.get(), address->raw(), address->size) != 0 && errno != EINPROGRESS) {
    if (errno == ECONNREFUSED || errno == ENOENT || errno == EACCES)
      return not_listening(rank, *address);
    // EAGAIN: the queue of a Unix listener is full. Retry soon, since unauthenticated connections
    // compete for it.
    const int error = errno;
    target.problem = address->text() + ": " + std::strerror(error);
    target.next_ns = now + (error == EAGAIN ? kFirstPause : target.pause_ns);
    target.pause_ns = std::min(2 * target.pause_ns, kLongestPause);
    return {};
  }
  target.under_way = true;
  attempts_.push_back({Handshake::connect(self_, std::move(fd), rank, target.endpoint.id), nullptr,
                       now, target.over_network});
  return {};
}

void FullMeshBuilder::accept_some(size_t listener, int64_t now) {
  for (int i = 0; i < kAcceptedAtOnce && !is_full(); ++i) {
    Descriptor fd = listener_.accept(listener);
    if (!fd) {
      // Without descriptors the listener stays readable, so pause instead of spinning.
      if (errno != EAGAIN && errno != EINTR) {
        accept_after_ns_ = now + kLongestPause;
        max_unauthenticated_ = std::max<size_t>(unauthenticated_ / 2, 1);
      }
      return;
    }
    attempts_.push_back({Handshake::accept(self_, std::move(fd), listener_.endpoint().id), nullptr,
                         now, listener > 0});
    ++unauthenticated_;
  }
}

void FullMeshBuilder::drop_unauthenticated(int64_t now) {
  for (auto attempt = attempts_.begin(); attempt != attempts_.end();) {
    const int64_t age = now - attempt->began_ns;
    const int64_t least = attempt->handshake.peer() < 0 ? kMinHandshakeNs : kMinHandshakeNsGreeted;
    const bool drop =
        !attempt->handshake.connects() && (age > kStrangersTime || (is_full() && age > least));
    unauthenticated_ -= drop ? 1 : 0;
    attempt = drop ? attempts_.erase(attempt) : std::next(attempt);
  }
}

Failure FullMeshBuilder::lose(Attempt& attempt, const std::string& problem) {
  if (!attempt.handshake.connects()) {
    --unauthenticated_;
    return {};
  }
  const int32_t rank = attempt.handshake.peer();
  Target& target = targets_[static_cast<size_t>(rank)];
  target.under_way = false;
  if (attempt.handshake.is_refused())
    return not_listening(rank, *parse_address(target.endpoint.network));
  target.problem = problem;
  target.next_ns = now_ns() + target.pause_ns;
  target.pause_ns = std::min(2 * target.pause_ns, kLongestPause);
  return {};
}

// How the other end disagrees about the job; "": it agrees.
std::string FullMeshBuilder::mismatch(const Handshake& handshake) const {
  if (handshake.peer_size() != options_.size)
    return "has " + std::to_string(handshake.peer_size()) + " ranks, but this rank has " +
           std::to_string(options_.size);
  const auto theirs = static_cast<Protect>(handshake.peer_mode());
  if (theirs == options_.protect) return "";
  return std::string("has protect = \"") + protect_name(theirs) + "\", but this rank has \"" +
         protect_name(options_.protect) + "\"";
}

Failure FullMeshBuilder::finish_handshake(Attempt& attempt, bool* over) {
  Handshake& handshake = attempt.handshake;
  const int32_t peer = handshake.peer();
  if (const std::string difference = mismatch(handshake); !difference.empty()) {
    return Failure::make(
        DB_ERR_MISMATCH,
        "gloo_cpu: " + rank_text(peer) + " " + difference + "; give every rank the same settings",
        0, peer);
  }
  // It belongs to the job but should not connect to this rank.
  if (!handshake.connects() && (peer <= options_.rank || peer >= options_.size)) {
    *over = true;
    return lose(attempt, "");
  }
  if (attempt.over_network && mesh_.tls_ != nullptr) {
    const Bytes32 key = handshake.session_key();
    attempt.connection = std::make_unique<Connection>(handshake.release(), mesh_.tls_.get(), key,
                                                      handshake.connects());
  } else {
    attempt.connection = std::make_unique<Connection>(handshake.release());
  }
  return {};
}

// Advances an attempt; *over: the attempt must be removed.
Failure FullMeshBuilder::advance(Attempt& attempt, bool* over) {
  *over = false;
  if (attempt.connection == nullptr) {
    const Handshake::State state = attempt.handshake.advance();
    if (state == Handshake::State::kUnderWay) return {};
    if (state == Handshake::State::kFailed) {
      *over = true;
      return lose(attempt, attempt.handshake.problem());
    }
    if (Failure failure = finish_handshake(attempt, over); !failure.ok() || *over) return failure;
  }
  if (TlsStream* const tls = attempt.connection->tls(); tls != nullptr) {
    const TlsStream::State state = tls->handshake();
    if (state == TlsStream::State::kUnderWay) return {};
    if (state == TlsStream::State::kFailed) {
      *over = true;
      return lose(attempt, tls->problem());
    }
  }
  *over = true;
  // A rank that had to reconnect has given up its earlier connection.
  auto& place = mesh_.connections_[static_cast<size_t>(attempt.handshake.peer())];
  missing_ -= place == nullptr ? 1 : 0;
  place = std::move(attempt.connection);
  unauthenticated_ -= attempt.handshake.connects() ? 0 : 1;
  return {};
}

Failure FullMeshBuilder::wait(int64_t now) {
  int64_t until = std::min(options_.deadline_ns, now + 1000 * kMillisecond);
  for (const Target& target : targets_) {
    const auto rank = static_cast<size_t>(&target - targets_.data());
    if (!target.under_way && mesh_.connections_[rank] == nullptr)
      until = std::min(until, target.next_ns);
  }
  const bool accepts = !is_full() && now >= accept_after_ns_;
  if (!accepts) until = std::min(until, now + kMinHandshakeNs / 4);
  std::vector<pollfd> polled;
  for (const Descriptor& socket : listener_.sockets())
    polled.push_back({accepts ? socket.get() : -1, POLLIN, 0});
  for (const Attempt& attempt : attempts_) polled.push_back({attempt.fd(), attempt.events(), 0});
  const int64_t left = std::max<int64_t>(until - now, 0);
  const timespec limit{left / 1'000'000'000, left % 1'000'000'000};
  const int ready = ppoll(polled.data(), polled.size(), &limit, nullptr);
  if (ready < 0 && errno != EINTR) return system_failure("ppoll", errno);
  if (ready <= 0) return {};
  const size_t listeners = listener_.sockets().size();
  size_t index = listeners;
  for (auto attempt = attempts_.begin(); attempt != attempts_.end(); ++index) {
    bool over = false;
    if (polled[index].revents != 0) {
      if (Failure failure = advance(*attempt, &over); !failure.ok()) return failure;
    }
    attempt = over ? attempts_.erase(attempt) : std::next(attempt);
  }
  now = now_ns();
  for (size_t i = 0; i < listeners; ++i)
    if (polled[i].revents != 0) accept_some(i, now);
  return {};
}

Failure FullMeshBuilder::too_late() const {
  for (int32_t rank = 0; rank < options_.size; ++rank) {
    if (rank == options_.rank || mesh_.connections_[static_cast<size_t>(rank)] != nullptr) continue;
    const bool connects = rank < options_.rank;
    const std::string problem = connects ? targets_[static_cast<size_t>(rank)].problem : "";
    return never_came(rank,
                      problem.empty() ? "did not connect" : "did not connect (" + problem + ")");
  }
  return {};
}

Failure FullMeshBuilder::build() {
  if (Failure failure = prepare(); !failure.ok()) return failure;
  if (Failure failure = find_targets(); !failure.ok()) return failure;
  while (missing_ > 0) {
    const int64_t now = now_ns();
    if (now >= options_.deadline_ns) return too_late();
    drop_unauthenticated(now);
    if (Failure failure = open_attempts(now); !failure.ok()) return failure;
    if (Failure failure = wait(now); !failure.ok()) return failure;
  }
  return {};
}

std::unique_ptr<FullMesh> FullMesh::connect(const FullMeshOptions& options,
                                            const BootstrapStore& store, Failure* failure) {
  std::unique_ptr<FullMesh> mesh(new FullMesh);
  try {
    FullMeshBuilder builder(options, store, mesh.get());
    *failure = builder.build();
  } catch (const std::exception& error) {
    *failure = Failure::make(DB_ERR_SYSTEM,
                             std::string("gloo_cpu cannot connect the ranks: ") + error.what());
  }
  if (!failure->ok()) mesh.reset();
  return mesh;
}

std::vector<Connection*> FullMesh::connections() const {
  std::vector<Connection*> result;
  for (const auto& connection : connections_) result.push_back(connection.get());
  return result;
}

std::string FullMesh::describe() const {
  size_t local = 0;
  size_t remote = 0;
  for (const auto& connection : connections_) {
    if (connection == nullptr) continue;
    ++(local_address(connection->fd()).family() == AF_UNIX ? local : remote);
  }
  std::string text = std::to_string(local) + " over Unix sockets";
  if (remote == 0) return text;
  return text + ", " + std::to_string(remote) + " over TCP" +
         (protect_ == Protect::kTls   ? " with TLS"
          : protect_ == Protect::kMac ? " with a MAC on every record"
                                      : "");
}

}  // namespace db::gloo_cpu

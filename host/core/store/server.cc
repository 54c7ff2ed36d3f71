#include "store/server.h"

#include <coupler/error.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <bit>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/file_descriptor.h"
#include "base/log.h"
#include "base/network.h"
#include "base/process.h"
#include "store/link.h"
#include "store/session.h"

namespace coupler::store {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

struct Listener {  // on TCP
  UniqueFd fd;
  int family = AF_INET;
  int port = 0;
};

[[noreturn]] void fail_listen(const StoreServerOptions& options, const std::string& what,
                              std::string hint) {
  const auto address = address_text(options.host, options.port);
  throw Error(ErrorCode::kIo, fmt::format("the job's store cannot listen on {}: {}", address, what),
              {.subject = address, .hint = std::move(hint)});
}

// Direct system calls instead of Asio's, so that the sockets are close-on-exec from the start: the
// launcher forks while this server runs.
Listener listen_on(const StoreServerOptions& options) {
  if (is_wildcard(options.host)) {
    if (!options.all_interfaces) {
      fail_config(fmt::format("the job's store does not listen on all interfaces ({}) unless "
                              "launch.all_interfaces is set",
                              options.host),
                  options.host,
                  "name the interface that the job's machines share (backend.interface), or set "
                  "launch.all_interfaces = true");
    }
    log(LogLevel::kWarning, "store",
        fmt::format("the job's store listens on all interfaces ({}): every network that reaches "
                    "this machine reaches it",
                    options.host));
  }
  const HostAddresses found = numeric_host(options.host, options.port);
  if (!found.list) {
    fail_listen(options, "the host is not a numeric address",
                "give an address such as 127.0.0.1 or ::1");
  }
  const addrinfo* const address = found.list.get();
  Listener listener;
  listener.family = address->ai_family;
  listener.fd.reset(::socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int fd = listener.fd.get();
  const int on = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (listener.family == AF_INET6 && fd >= 0) {
    // "::" covers IPv4 as well, whatever the system's default is.
    const int only = is_wildcard(options.host) ? 0 : 1;
    ::setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof only);
  }
  if (fd < 0 || ::bind(fd, address->ai_addr, address->ai_addrlen) != 0 ||
      ::listen(fd, SOMAXCONN) != 0) {
    const int failure = errno;
    fail_listen(options, std::generic_category().message(failure),
                failure == EADDRINUSE
                    ? "another program uses this port (`ss -ltnp` shows which): choose another"
                    : "check the address");
  }
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size);
  listener.port =
      ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(bound).sin6_port
                                        : reinterpret_cast<const sockaddr_in&>(bound).sin_port);
  return listener;
}

// For everything else the process opens: pipes and pidfds of its children, libraries, logs.
constexpr rlim_t kReserve = 64;

// How many descriptors connections that have not authenticated may use together: at most a quarter
// of the soft limit of open files, so that members and the process itself keep the rest. If members
// may need more than half of the soft limit, raises it as far as the hard limit allows (ranks
// inherit it; so threads that depend on it start later), and logs a warning if that is not enough.
size_t descriptors_for_unauthenticated(size_t members, size_t unauthenticated) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return unauthenticated;
  }
  // A launcher holds up to three descriptors for each process it has started.
  const rlim_t for_members = kReserve + 4 * static_cast<rlim_t>(members);
  const rlim_t wanted = for_members + unauthenticated;
  // Small jobs keep the limit: programs that use select() need low descriptor numbers.
  if (for_members > limit.rlim_cur / 2 && wanted > limit.rlim_cur &&
      limit.rlim_cur < limit.rlim_max) {
    rlimit raised = limit;
    raised.rlim_cur = std::min(wanted, limit.rlim_max);
    if (::setrlimit(RLIMIT_NOFILE, &raised) == 0) {
      limit = raised;
    }
  }
  if (for_members > limit.rlim_cur) {
    log(LogLevel::kWarning, "store",
        fmt::format(
            "{} processes may need {} open files, but only {} are allowed: raise `ulimit -Hn`",
            members, for_members, limit.rlim_cur));
  }
  // At most a quarter: the rest belongs to the job, whatever unauthenticated connections do.
  const size_t quarter = std::max<size_t>(8, static_cast<size_t>(limit.rlim_cur / 4));
  return std::min(unauthenticated + members, quarter);
}

}  // namespace

struct StoreServer::Impl {
  Impl(const Bytes32& secret, const StoreServerOptions& options)
      : hub(secret, options, io), door(io), pause(io), host(options.host) {
    hub.descriptors =
        descriptors_for_unauthenticated(options.members, options.limits.unauthenticated);
    if (options.host == StoreServerOptions::kUnnamed || is_local(options.host)) {
      local.emplace(is_local(options.host) ? options.host : "");
      host = local->path();
      door.assign(local->take_socket().release());
    } else {
      Listener listener = listen_on(options);
      port = listener.port;
      family = listener.family;
      door.assign(listener.fd.release());
    }
    accept_soon();
    thread = std::thread([this] {
      block_signals();
      io.run();
    });
  }

  ~Impl() {
    io.stop();
    thread.join();
    hub.members.stop();
    while (!hub.sessions.empty()) {
      const auto session = hub.sessions.begin()->second;
      session->close();
    }
  }

  void accept_soon() {
    door.async_wait(asio::posix::stream_descriptor::wait_read, [this](error_code failure) {
      if (!failure) {
        accept_some();
      }
    });
  }

  // Accepts a few waiting connections at a time, so that existing ones are served in between.
  void accept_some() {
    for (int i = 0; i < 16; ++i) {
      UniqueFd fd(::accept4(door.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (fd) {
        admit(std::move(fd));
      } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        // The listening socket stays readable meanwhile: without a pause this would spin.
        if (std::has_single_bit(++starved)) {
          log(LogLevel::kWarning, "store",
              "out of file descriptors: connections have to wait (raise `ulimit -n`)");
        }
        hub.limit_unauthenticated(hub.unauthenticated.size() / 2);
        pause.expires_after(std::chrono::milliseconds(20));
        pause.async_wait([this](error_code failure) {
          if (!failure) {
            accept_soon();
          }
        });
        return;
      } else if (errno == EAGAIN) {
        break;
      }
    }
    accept_soon();
  }

  void admit(UniqueFd fd) {
    if (local) {
      if (const uid_t user = user_of_peer(fd.get()); user != own_user) {
        if (std::has_single_bit(++foreign)) {
          log(LogLevel::kWarning, "store",
              fmt::format("closed {} connection{} from other users, the last from user {}", foreign,
                          foreign == 1 ? "" : "s", user));
        }
        return;
      }
    } else {
      const int on = 1;
      ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    }
    hub.limit_unauthenticated(hub.max_unauthenticated() - 1);
    StoreStream::Socket socket(io);
    socket.assign({family, 0}, fd.release());
    std::make_shared<StoreSession>(hub, std::move(socket))->start();
  }

  asio::io_context io{1};
  StoreHub hub;
  std::optional<LocalListener> local;   // on a Unix socket
  asio::posix::stream_descriptor door;  // the listening socket
  asio::steady_timer pause;
  uint64_t starved = 0;  // how often descriptors ran out
  uint64_t foreign = 0;  // connections from other users
  const uid_t own_user = ::geteuid();
  std::string host;
  int port = 0;
  int family = AF_UNIX;
  std::thread thread;
};

StoreServer::StoreServer(const Bytes32& secret, const StoreServerOptions& options)
    : impl_(std::make_unique<Impl>(secret, options)) {}
StoreServer::~StoreServer() = default;

const std::string& StoreServer::host() const { return impl_->host; }
int StoreServer::port() const { return impl_->port; }
void StoreServer::watch(int rank, const ProcessIdentity& process) {
  asio::post(impl_->io, [this, rank, process] { impl_->hub.members.watch(rank, process); });
}

size_t StoreServer::clients() const { return impl_->hub.clients.load(std::memory_order_relaxed); }

namespace {

constexpr auto kLinger = std::chrono::milliseconds(500);

}  // namespace

RankZeroStore::RankZeroStore(const Bytes32& secret, const StoreServerOptions& options,
                             std::chrono::nanoseconds timeout, const std::string& client_host)
    : RankZeroStore(std::make_unique<StoreServer>(secret, options), secret, options.tls, timeout,
                    client_host) {
  if (options.host_rank >= 0) {
    join(options.host_rank);
  }
}

RankZeroStore::RankZeroStore(std::unique_ptr<StoreServer> server, const Bytes32& secret, bool tls,
                             std::chrono::nanoseconds timeout, const std::string& client_host)
    : StoreClient(client_host.empty() ? server->host() : client_host, server->port(), secret,
                  timeout, tls),
      server_(std::move(server)) {}

StoreServerOptions RankZeroStore::server_options(const config::BackendConfig& backend) {
  StoreServerOptions options;
  options.peer_timeout = std::chrono::ceil<std::chrono::milliseconds>(backend.peer_timeout);
  options.host_rank = 0;
  return options;
}

RankZeroStore::~RankZeroStore() {
  leave();  // while the server still runs
  const auto deadline = deadline_after(kLinger);
  while (server_->clients() > 1 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

}  // namespace coupler::store

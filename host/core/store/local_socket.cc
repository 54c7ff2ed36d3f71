#include "store/local_socket.h"

#include <coupler/error.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/process_identity.h"
#include "base/secret.h"

namespace coupler {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// An address has room for 107 bytes; a longer path is reached through its folder.
constexpr size_t kLongestName = 80;

UniqueFd open_folder(const std::string& folder) {
  return UniqueFd(::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
}

sockaddr_un address_in(const UniqueFd& folder, std::string_view name) {
  const auto path = fmt::format("/proc/self/fd/{}/{}", folder.get(), name);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), std::min(path.size(), sizeof address.sun_path - 1));
  return address;
}

// A socket that listens there; if empty, errno says why.
UniqueFd listen_in(const UniqueFd& folder, const std::string& name) {
  if (!folder) {
    return {};
  }
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const auto address = address_in(folder, name);
  // The file gets the socket's mode when it is created: others can never connect, not even briefly.
  if (!socket || ::fchmod(socket.get(), 0600) != 0 ||
      ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(socket.get(), SOMAXCONN) != 0) {
    const int failure = errno;
    socket.reset();
    errno = failure;
  }
  return socket;
}

[[noreturn]] void fail_listen_local(const std::string& folder, int failure) {
  throw Error(
      ErrorCode::kIo,
      fmt::format("the job's store cannot listen on a Unix socket in {}: {}", folder,
                  std::generic_category().message(failure)),
      {.subject = folder, .hint = "set TMPDIR to a writable folder on a local file system"});
}

// "store-", a hash of the machine, and a dash; process, start time and a random number follow.
// Processes that see each other's ids share this prefix.
std::string name_prefix() {
  const auto machine = machine_identity();
  const auto* bytes = reinterpret_cast<const uint8_t*>(machine.data());
  return fmt::format("store-{}-",
                     to_hex(hmac_sha256(Bytes32{}, {bytes, machine.size()})).substr(0, 12));
}

// Names are unique, so that no other listener's file is ever removed.
std::string new_name() {
  const auto self = own_identity();
  return fmt::format("{}{}-{}-{}", name_prefix(), self.pid, self.started,
                     to_hex(random_bytes32()).substr(0, 16));
}

void remove_left_behind(const std::string& folder) {
  const auto prefix = name_prefix();
  std::error_code failure;  // best effort: what cannot be read or removed stays
  for (const auto& entry : fs::directory_iterator(folder, failure)) {
    const auto name = entry.path().filename().string();
    if (name.compare(0, prefix.size(), prefix) != 0) {
      continue;
    }
    const auto end = name.rfind('-');
    const auto start = name.rfind('-', end - 1) + 1;
    const ProcessIdentity owner{std::atol(name.c_str() + prefix.size()),
                                name.substr(start, end - start)};
    if (!is_alive(owner)) {
      ::unlink(entry.path().c_str());
    }
  }
}

// Folders in which the socket's file may exist for a moment.
std::vector<std::string> passing_folders() {
  std::vector<std::string> folders{"/dev/shm", "/tmp"};
  for (const char* variable : {"XDG_RUNTIME_DIR", "TMPDIR"}) {
    if (const char* value = ::secure_getenv(variable); value != nullptr && *value != '\0') {
      folders.emplace_back(value);
    }
  }
  return folders;
}

// 0 or errno; ETIMEDOUT if the queue stayed full.
int try_connect_path(const std::string& path, Deadline deadline, UniqueFd& out) {
  const auto start = path.rfind('/') + 1;
  const std::string_view name = std::string_view(path).substr(start);
  if (name.size() > kLongestName) {
    return ENAMETOOLONG;
  }
  const UniqueFd folder = open_folder(path.substr(0, start));
  if (!folder) {
    return errno;
  }
  // Blocking, since the kernel admits waiting clients in turn, whereas a client that merely retries
  // may never find a place in the queue.
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) {
    return errno;
  }
  const auto address = address_in(folder, name);
  do {
    const long left = std::max(poll_timeout(deadline), 1);
    const timeval limit{.tv_sec = left / 1000, .tv_usec = left % 1000 * 1000};
    ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
      out = std::move(socket);
      return 0;
    }
    if (errno != EAGAIN && errno != EINTR) {
      return errno;
    }
  } while (Clock::now() < deadline);
  return ETIMEDOUT;
}

}  // namespace

LocalListener::LocalListener(const std::string& folder) {
  const auto name = new_name();
  if (!folder.empty()) {
    remove_left_behind(folder);
    socket_ = listen_in(open_folder(folder), name);
    if (!socket_) {
      fail_listen_local(folder, errno);
    }
    path_ = folder + "/" + name;
    return;
  }
  int failure = 0;
  const auto folders = passing_folders();
  for (const auto& passing : folders) {
    const UniqueFd open = open_folder(passing);
    const auto hidden = ".coupler-" + name;
    socket_ = listen_in(open, hidden);
    if (!socket_) {
      failure = errno;
      continue;
    }
    place_.reset(::openat(open.get(), hidden.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    failure = errno;
    ::unlinkat(open.get(), hidden.c_str(), 0);
    if (place_) {
      path_ = fmt::format("/proc/{}/fd/{}", ::getpid(), place_.get());
      return;
    }
  }
  fail_listen_local(fmt::format("any of {}", fmt::join(folders, ", ")), failure);
}

LocalListener::~LocalListener() {
  if (!place_) {
    ::unlink(path_.c_str());
  }
}

UniqueFd connect_locally(const std::string& path, Deadline deadline) {
  UniqueFd socket;
  if (const int failure = try_connect_path(path, deadline, socket); failure != 0) {
    throw Error(failure == ETIMEDOUT ? ErrorCode::kTimeout : ErrorCode::kPeerLost,
                fmt::format("cannot connect to the job's store at {}: {}", path,
                            failure == ETIMEDOUT ? "too many connections are waiting"
                                                 : std::generic_category().message(failure)),
                {.subject = path,
                 .hint = failure == EACCES
                             ? "start launcher and ranks as the same user"
                             : "the process that hosts the store (the launcher, or rank 0) may "
                               "have ended: look at its messages"});
  }
  if (const uid_t user = user_of_peer(socket.get()); user != ::geteuid()) {
    throw Error(ErrorCode::kPeerLost,
                fmt::format("the listener at {} runs as user {}, but this process runs as user {}; "
                            "nothing was sent to it",
                            path, user, ::geteuid()),
                {.subject = path, .hint = "start launcher and ranks as the same user"});
  }
  return socket;
}

uid_t user_of_peer(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 ? peer.uid
                                                                          : static_cast<uid_t>(-1);
}

}  // namespace coupler

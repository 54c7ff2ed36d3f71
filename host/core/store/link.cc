#include "store/link.h"

#include <coupler/error.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <openssl/err.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/process.h"
#include "base/sha256.h"

namespace coupler::store {
namespace {

// Names the key in the handshake; public.
constexpr std::string_view kIdentity = "coupler job";
// One suite, since a pre-shared key belongs to one hash.
constexpr const char* kSuite = "TLS_AES_128_GCM_SHA256";
constexpr unsigned char kSuiteNumber[2] = {0x13, 0x01};

const unsigned char* bytes(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

// Where a context keeps its StoreTls; Asio deletes what it finds as "application data".
int place() {
  static const int kPlace =
      ::CRYPTO_get_ex_new_index(CRYPTO_EX_INDEX_SSL_CTX, 0, nullptr, nullptr, nullptr, nullptr);
  return kPlace;
}

}  // namespace

StoreTls::StoreTls(const Bytes32& secret, Side side)
    : key_(derive_key(secret, "coupler store tls 1.3 psk")),
      context_(::SSL_CTX_new(side == Side::kClient ? ::TLS_client_method() : ::TLS_server_method()),
               &::SSL_CTX_free) {
  SSL_CTX* context = context_.get();
  if (context == nullptr || SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) != 1 ||
      ::SSL_CTX_set_ciphersuites(context, kSuite) != 1 ||
      ::SSL_CTX_set_num_tickets(context, 0) != 1) {
    throw Error(ErrorCode::kInternal, "OpenSSL does not support TLS 1.3",
                {.subject = "launch.tls", .hint = "set launch.tls = false, or repair OpenSSL"});
  }
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  ::SSL_CTX_set_ex_data(context, place(), this);
  if (side == Side::kClient) {
    ::SSL_CTX_set_psk_use_session_callback(context, &StoreTls::offer);
    // There are no certificates: rejects a server that offers one instead of the key.
    ::SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  } else {
    ::SSL_CTX_set_psk_find_session_callback(context, &StoreTls::accept);
  }
}

SSL_SESSION* StoreTls::make_session(SSL* ssl) const {
  SSL_SESSION* session = ::SSL_SESSION_new();
  const SSL_CIPHER* cipher = ::SSL_CIPHER_find(ssl, kSuiteNumber);
  if (session != nullptr && cipher != nullptr &&
      ::SSL_SESSION_set1_master_key(session, key_.data(), key_.size()) == 1 &&
      ::SSL_SESSION_set_cipher(session, cipher) == 1 &&
      ::SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1) {
    return session;
  }
  ::SSL_SESSION_free(session);
  return nullptr;
}

int StoreTls::offer(SSL* ssl, const EVP_MD* digest, const unsigned char** id, size_t* id_size,
                    SSL_SESSION** session) {
  const auto* self =
      static_cast<const StoreTls*>(::SSL_CTX_get_ex_data(::SSL_get_SSL_CTX(ssl), place()));
  *session = self->make_session(ssl);
  if (*session == nullptr) {
    return 0;
  }
  // After a retry, OpenSSL requests a key for the hash that the server has chosen.
  if (digest != nullptr &&
      ::SSL_CIPHER_get_handshake_digest(::SSL_SESSION_get0_cipher(*session)) != digest) {
    ::SSL_SESSION_free(*session);
    *session = nullptr;
    return 0;
  }
  *id = bytes(kIdentity);
  *id_size = kIdentity.size();
  return 1;
}

int StoreTls::accept(SSL* ssl, const unsigned char* id, size_t id_size, SSL_SESSION** session) {
  *session = nullptr;
  if (id_size != kIdentity.size() || CRYPTO_memcmp(id, kIdentity.data(), id_size) != 0) {
    return 1;  // continues without a key, then fails: there is no certificate
  }
  const auto* self =
      static_cast<const StoreTls*>(::SSL_CTX_get_ex_data(::SSL_get_SSL_CTX(ssl), place()));
  *session = self->make_session(ssl);
  return *session == nullptr ? 0 : 1;
}

namespace {

// OpenSSL would write to the socket itself and raise SIGPIPE, so it uses memory instead.
constexpr size_t kRecord = 18432;  // one record of TLS, with all possible overhead

int as_int(size_t size) { return static_cast<int>(std::min<size_t>(size, INT_MAX)); }

}  // namespace

IoResult StoreLink::start_tls(const StoreTls& tls, Deadline deadline, bool& refused) {
  ssl_.reset(::SSL_new(tls.context()));
  BIO* in = ::BIO_new(::BIO_s_mem());
  BIO* out = ::BIO_new(::BIO_s_mem());
  if (ssl_ == nullptr || in == nullptr || out == nullptr) {
    ::BIO_free(in);
    ::BIO_free(out);
    throw Error(ErrorCode::kInternal, "OpenSSL cannot start TLS");
  }
  BIO_set_mem_eof_return(in, -1);  // empty is not the end: more will come
  ::SSL_set_bio(ssl_.get(), in, out);
  while (true) {
    ::ERR_clear_error();
    const int done = ::SSL_connect(ssl_.get());
    const int reason = ::SSL_get_error(ssl_.get(), done);
    // Also sends an alert to the other side, if there is one.
    if (const auto result = flush(deadline); result != IoResult::kOk) {
      return result;
    }
    if (done == 1) {
      return IoResult::kOk;
    }
    if (reason != SSL_ERROR_WANT_READ) {
      refused = true;
      return IoResult::kClosed;
    }
    if (const auto result = feed(deadline); result != IoResult::kOk) {
      return result;
    }
  }
}

IoResult StoreLink::flush(Deadline deadline) {
  std::array<char, kRecord> bytes;
  while (true) {
    int size = 0;
    {
      const std::lock_guard lock(tls_mutex_);
      size = ::BIO_read(::SSL_get_wbio(ssl_.get()), bytes.data(), as_int(bytes.size()));
    }
    if (size <= 0) {
      return IoResult::kOk;
    }
    const auto result = send_all(fd_.get(), bytes.data(), static_cast<size_t>(size), deadline);
    if (result != IoResult::kOk) {
      return result;
    }
  }
}

IoResult StoreLink::feed(Deadline deadline) {
  std::array<char, kRecord> bytes;
  size_t got = 0;
  const auto result = receive_some(fd_.get(), bytes.data(), bytes.size(), deadline, got);
  if (result == IoResult::kOk) {
    const std::lock_guard lock(tls_mutex_);
    ::BIO_write(::SSL_get_rbio(ssl_.get()), bytes.data(), as_int(got));
  }
  return result;
}

IoResult StoreLink::send(const void* data, size_t size, Deadline deadline) {
  const std::lock_guard order(send_mutex_);
  if (ssl_ == nullptr) {
    return send_all(fd_.get(), data, size, deadline);
  }
  const auto* bytes = static_cast<const char*>(data);
  while (size > 0) {
    int taken = 0;
    {
      const std::lock_guard lock(tls_mutex_);
      ::ERR_clear_error();
      taken = ::SSL_write(ssl_.get(), bytes, as_int(size));
    }
    if (taken <= 0) {
      return IoResult::kClosed;
    }
    bytes += taken;
    size -= static_cast<size_t>(taken);
    if (const auto result = flush(deadline); result != IoResult::kOk) {
      return result;
    }
  }
  return IoResult::kOk;
}

IoResult StoreLink::receive(void* data, size_t size, Deadline deadline) {
  if (ssl_ == nullptr) {
    return receive_all(fd_.get(), data, size, deadline);
  }
  auto* bytes = static_cast<char*>(data);
  while (size > 0) {
    int got = 0;
    int reason = SSL_ERROR_NONE;
    {
      const std::lock_guard lock(tls_mutex_);
      ::ERR_clear_error();
      got = ::SSL_read(ssl_.get(), bytes, as_int(size));
      reason = ::SSL_get_error(ssl_.get(), got);
    }
    if (got > 0) {
      bytes += got;
      size -= static_cast<size_t>(got);
      continue;
    }
    if (reason != SSL_ERROR_WANT_READ) {
      return IoResult::kClosed;
    }
    if (const auto result = feed(deadline); result != IoResult::kOk) {
      return result;
    }
  }
  return IoResult::kOk;
}

bool StoreLink::wait_readable(int timeout) {
  if (ssl_ != nullptr) {
    const std::lock_guard lock(tls_mutex_);
    if (::SSL_has_pending(ssl_.get()) == 1 || BIO_pending(::SSL_get_rbio(ssl_.get())) > 0) {
      return true;
    }
  }
  pollfd entry{fd_.get(), POLLIN, 0};
  int ready = 0;
  while ((ready = ::poll(&entry, 1, timeout)) < 0 && errno == EINTR) {
  }
  return ready != 0;
}

bool StoreLink::is_writable() const {
  pollfd entry{fd_.get(), POLLOUT, 0};
  return ::poll(&entry, 1, 0) == 1;
}

void StoreLink::shutdown() { ::shutdown(fd_.get(), SHUT_RDWR); }

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// An address has room for 107 bytes; a longer path is reached through its folder.
constexpr size_t kLongestName = 80;

UniqueFd open_directory(const std::string& folder) {
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
  return fmt::format("store-{}-", to_hex(hmac_sha256({}, machine_identity())).substr(0, 12));
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
  const UniqueFd folder = open_directory(path.substr(0, start));
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
    socket_ = listen_in(open_directory(folder), name);
    if (!socket_) {
      fail_listen_local(folder, errno);
    }
    path_ = folder + "/" + name;
    return;
  }
  int failure = 0;
  const auto folders = passing_folders();
  for (const auto& passing : folders) {
    const UniqueFd open = open_directory(passing);
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

}  // namespace coupler::store

#include "gloo_cpu/connection.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/hmac.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

namespace db::gloo_cpu {
namespace {

constexpr char kIdentity[] = "coupler gloo_cpu";  // names the key; public
constexpr const char* kTlsSuite = "TLS_AES_128_GCM_SHA256";
// Level 0, because only that level allows a suite without encryption.
constexpr const char* kMacSuite = "PSK-NULL-SHA256:@SECLEVEL=0";
// AES-GCM is safe for 2^24.5 records of 16 KiB under one key (RFC 8446, 5.5): 388 GB.
constexpr uint64_t kBytesUnderKey = uint64_t{1} << 36;

// OpenSSL's own socket BIO would raise SIGPIPE.
int write_bio(BIO* bio, const char* data, int size) {
  const auto fd = *static_cast<const int*>(BIO_get_data(bio));
  BIO_clear_retry_flags(bio);
  const ssize_t sent = ::send(fd, data, static_cast<size_t>(size), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_write(bio);
  return static_cast<int>(sent);
}

int read_bio(BIO* bio, char* data, int size) {
  const auto fd = *static_cast<const int*>(BIO_get_data(bio));
  BIO_clear_retry_flags(bio);
  const ssize_t got = ::recv(fd, data, static_cast<size_t>(size), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_read(bio);
  return static_cast<int>(got);
}

long control_bio(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

const BIO_METHOD* socket_method() {
  static const BIO_METHOD* const kMethod = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "coupler socket");
    if (made == nullptr || BIO_meth_set_write(made, write_bio) != 1 ||
        BIO_meth_set_read(made, read_bio) != 1 || BIO_meth_set_ctrl(made, control_bio) != 1) {
      throw std::runtime_error("OpenSSL cannot create a BIO");
    }
    return made;
  }();
  return kMethod;
}

int key_place() {
  static const int kPlace = SSL_get_ex_new_index(0, nullptr, nullptr, nullptr, nullptr);
  return kPlace;
}

const Bytes32& key_of(SSL* ssl) {
  return *static_cast<const Bytes32*>(SSL_get_ex_data(ssl, key_place()));
}

unsigned offer_key(SSL* ssl, const char*, char* identity, unsigned identity_size,
                   unsigned char* key, unsigned key_size) {
  const Bytes32& ours = key_of(ssl);
  if (identity_size < sizeof kIdentity || key_size < ours.size()) return 0;
  std::memcpy(identity, kIdentity, sizeof kIdentity);
  std::copy(ours.begin(), ours.end(), key);
  return static_cast<unsigned>(ours.size());
}

unsigned accept_key(SSL* ssl, const char* identity, unsigned char* key, unsigned key_size) {
  const Bytes32& ours = key_of(ssl);
  if (identity == nullptr || std::strcmp(identity, kIdentity) != 0 || key_size < ours.size())
    return 0;
  std::copy(ours.begin(), ours.end(), key);
  return static_cast<unsigned>(ours.size());
}

// With a Unix socket's default buffer both ends take turns too often; measured, a larger buffer
// than this gains nothing. The kernel uses less if net.core.wmem_max is smaller.
constexpr int kUnixSendBuffer = 1 << 20;

// Every setting only makes a connection faster and none is required, so results are ignored.
void tune(int fd) {
  const Address peer = peer_address(fd);
  if (local_address(fd).family() == AF_UNIX) {
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kUnixSendBuffer, sizeof kUnixSendBuffer);
    return;
  }
  const int on = 1;
  (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  // Loopback has no congestion to control; a pacing algorithm (bbr, the default on some servers)
  // only costs timers there. "reno" is part of every kernel and available to every user.
  static constexpr char kName[] = "reno";
  if (peer.family() == AF_INET &&
      (ntohl(reinterpret_cast<const sockaddr_in&>(peer.storage).sin_addr.s_addr) >> 24) == 127) {
    (void)setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, kName, sizeof kName - 1);
  }
}

// Calls move(data, size) for one part after another, as long as each is moved completely.
template <class Move>
int64_t move_parts(const iovec* parts, size_t count, const Move& move) {
  int64_t total = 0;
  for (size_t i = 0; i < count; ++i) {
    auto* data = static_cast<uint8_t*>(parts[i].iov_base);
    size_t left = parts[i].iov_len;
    while (left > 0) {
      const int64_t moved = move(data, left);
      if (moved <= 0) return total > 0 ? total : moved;
      total += moved;
      data += moved;
      left -= static_cast<size_t>(moved);
    }
  }
  return total;
}

}  // namespace

TlsContext make_tls_context(Protect protect) {
  TlsContext made(SSL_CTX_new(TLS_method()), &SSL_CTX_free);
  SSL_CTX* const context = made.get();
  const bool encrypts = protect == Protect::kTls;
  const int version = encrypts ? TLS1_3_VERSION : TLS1_2_VERSION;
  if (context == nullptr || SSL_CTX_set_min_proto_version(context, version) != 1 ||
      SSL_CTX_set_max_proto_version(context, version) != 1 ||
      (encrypts ? SSL_CTX_set_ciphersuites(context, kTlsSuite)
                : SSL_CTX_set_cipher_list(context, kMacSuite)) != 1 ||
      SSL_CTX_set_num_tickets(context, 0) != 1) {
    throw std::runtime_error(std::string("this OpenSSL does not offer ") +
                             (encrypts ? kTlsSuite : kMacSuite));
  }
  // A truncated connection is detected by the lengths of the messages.
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                                   SSL_OP_IGNORE_UNEXPECTED_EOF);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_psk_client_callback(context, &offer_key);
  SSL_CTX_set_psk_server_callback(context, &accept_key);
  return made;
}

TlsStream::TlsStream(SSL_CTX* context, const Bytes32& key, int fd, bool connects)
    : fd_(fd), key_(key), ssl_(SSL_new(context), &SSL_free) {
  BIO* const bio = ssl_ == nullptr ? nullptr : BIO_new(socket_method());
  if (bio == nullptr || SSL_set_ex_data(ssl_.get(), key_place(), const_cast<Bytes32*>(&key_)) != 1)
    throw std::runtime_error("OpenSSL cannot start TLS");
  BIO_set_data(bio, const_cast<int*>(&fd_));
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl_.get(), bio, bio);
  if (connects) {
    SSL_set_connect_state(ssl_.get());
    // Certificates are not used: an end that offers one instead of the key is rejected.
    SSL_set_verify(ssl_.get(), SSL_VERIFY_PEER, nullptr);
  } else {
    SSL_set_accept_state(ssl_.get());
  }
}

TlsStream::State TlsStream::handshake() {
  ERR_clear_error();
  const int result = SSL_do_handshake(ssl_.get());
  if (result == 1) return State::kDone;
  const int reason = SSL_get_error(ssl_.get(), result);
  events_ = reason == SSL_ERROR_WANT_WRITE ? POLLOUT : POLLIN;
  if (reason == SSL_ERROR_WANT_READ || reason == SSL_ERROR_WANT_WRITE) return State::kUnderWay;
  std::array<char, 256> text{};
  ERR_error_string_n(ERR_peek_error(), text.data(), text.size());
  problem_ = std::string("the TLS handshake failed: ") +
             (ERR_peek_error() == 0 ? "the connection was closed" : text.data());
  return State::kFailed;
}

int64_t TlsStream::conclude(int result) {
  switch (SSL_get_error(ssl_.get(), result)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
      errno = EAGAIN;
      return -1;
    case SSL_ERROR_ZERO_RETURN:
      return 0;
    case SSL_ERROR_SYSCALL:
      if (errno == 0 || errno == EAGAIN) errno = ECONNRESET;
      return -1;
    default:
      errno = EBADMSG;
      return -1;
  }
}

int64_t TlsStream::send(const uint8_t* data, size_t size) {
  ERR_clear_error();
  if (sent_under_key_ >= kBytesUnderKey && SSL_version(ssl_.get()) == TLS1_3_VERSION) {
    if (SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) == 1) sent_under_key_ = 0;
  }
  const int result = SSL_write(ssl_.get(), data, static_cast<int>(std::min<size_t>(size, INT_MAX)));
  if (result <= 0) return conclude(result);
  sent_under_key_ += static_cast<uint64_t>(result);
  return result;
}

int64_t TlsStream::receive(uint8_t* data, size_t size) {
  ERR_clear_error();
  const int result = SSL_read(ssl_.get(), data, static_cast<int>(std::min<size_t>(size, INT_MAX)));
  return result > 0 ? result : conclude(result);
}

Connection::Connection(Descriptor fd) : fd_(std::move(fd)) { tune(fd_.get()); }

Connection::Connection(Descriptor fd, SSL_CTX* context, const Bytes32& key, bool connects)
    : Connection(std::move(fd)) {
  tls_ = std::make_unique<TlsStream>(context, key, fd_.get(), connects);
}

int64_t Connection::send(const iovec* parts, size_t count) {
  if (tls_ != nullptr) {
    return move_parts(parts, count,
                      [&](uint8_t* data, size_t size) { return tls_->send(data, size); });
  }
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts);
  message.msg_iovlen = count;
  return sendmsg(fd_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

int64_t Connection::receive(const iovec* parts, size_t count) {
  if (tls_ != nullptr) {
    return move_parts(parts, count,
                      [&](uint8_t* data, size_t size) { return tls_->receive(data, size); });
  }
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts);
  message.msg_iovlen = count;
  return recvmsg(fd_.get(), &message, MSG_DONTWAIT);
}

bool Connection::has_unread() const {
  if (tls_ != nullptr && tls_->has_unread()) return true;
  char byte = 0;
  return recv(fd_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

void Connection::shut_down() { (void)shutdown(fd_.get(), SHUT_RDWR); }

}  // namespace db::gloo_cpu

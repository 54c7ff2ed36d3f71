// StoreLink: a client's connection to a store, plain or with TLS. One thread may send while
// another receives; calls have deadlines.
#pragma once

#include <openssl/ssl.h>
#include <sys/types.h>

#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/write.hpp>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "base/file_descriptor.h"
#include "base/sha256.h"
#include "base/socket.h"

namespace coupler::store {

// TLS 1.3 for a job's store, without certificates: both sides know the job's secret, and a key
// derived from it (HKDF) is TLS's external pre-shared key. A side that does not know it cannot
// finish the handshake. A fresh Diffie-Hellman exchange is part of it, so a secret that leaks later
// does not decrypt recorded traffic. Contexts are [any-thread].

class StoreTls {
 public:
  enum class Side { kClient, kServer };
  StoreTls(const Bytes32& secret, Side side);
  StoreTls(const StoreTls&) = delete;
  StoreTls& operator=(const StoreTls&) = delete;

  SSL_CTX* context() const { return context_.get(); }

 private:
  // The callbacks find this object in the context.
  static int offer(SSL* ssl, const EVP_MD* digest, const unsigned char** id, size_t* id_size,
                   SSL_SESSION** session);
  static int accept(SSL* ssl, const unsigned char* id, size_t id_size, SSL_SESSION** session);
  SSL_SESSION* make_session(SSL* ssl) const;

  const Bytes32 key_;
  std::unique_ptr<SSL_CTX, decltype(&::SSL_CTX_free)> context_;
};

class StoreLink {
 public:
  explicit StoreLink(UniqueFd fd) : fd_(std::move(fd)) {}

  // TLS handshake; call it before anything else. kClosed: the other side went away. refused: it has
  // another secret, or does not use TLS.
  IoResult start_tls(const StoreTls& tls, Deadline deadline, bool& refused);

  IoResult send(const void* data, size_t size, Deadline deadline);
  IoResult receive(void* data, size_t size, Deadline deadline);
  // True once there is something to receive or the connection has ended (also by shutdown()).
  // False: timeout (milliseconds, -1: none) has passed.
  bool wait_readable(int timeout);
  // Whether a short message can be sent at once.
  bool is_writable() const;
  int socket() const { return fd_.get(); }
  void shutdown();

 private:
  IoResult flush(Deadline deadline);  // sends TLS's output
  IoResult feed(Deadline deadline);   // receives TLS's input

  UniqueFd fd_;
  std::mutex send_mutex_;  // one record after another
  std::mutex tls_mutex_;   // guards ssl_ and what it points to
  std::unique_ptr<SSL, decltype(&::SSL_free)> ssl_{nullptr, &::SSL_free};
};

// StoreStream: the server's end of one connection, plain or with TLS. On the server's io thread
// only; at most one read and one write in flight at a time.
class StoreStream {
 public:
  using Socket = boost::asio::generic::stream_protocol::socket;  // TCP or a Unix socket

  StoreStream(Socket socket, const StoreTls* tls) : socket_(std::move(socket)) {
    if (tls != nullptr) {
      ::SSL_CTX_up_ref(tls->context());  // Asio's context releases it
      boost::asio::ssl::context context(tls->context());
      tls_.emplace(socket_, context);
    }
  }

  // TLS handshake; without TLS, calls the handler at once.
  template <typename Handler>
  void handshake(Handler&& handler) {
    if (tls_) {
      tls_->async_handshake(boost::asio::ssl::stream_base::server, std::forward<Handler>(handler));
    } else {
      handler(boost::system::error_code());
    }
  }
  template <typename Handler>
  void read(const boost::asio::mutable_buffer& buffer, Handler&& handler) {
    if (tls_) {
      boost::asio::async_read(*tls_, buffer, std::forward<Handler>(handler));
    } else {
      boost::asio::async_read(socket_, buffer, std::forward<Handler>(handler));
    }
  }
  template <typename Buffers, typename Handler>
  void write(const Buffers& buffers, Handler&& handler) {
    if (tls_) {
      boost::asio::async_write(*tls_, buffers, std::forward<Handler>(handler));
    } else {
      boost::asio::async_write(socket_, buffers, std::forward<Handler>(handler));
    }
  }
  void close() {
    boost::system::error_code ignored;  // nothing to do on failure
    socket_.close(ignored);
  }
  int native_handle() { return socket_.native_handle(); }
  auto get_executor() { return socket_.get_executor(); }

 private:
  Socket socket_;
  std::optional<boost::asio::ssl::stream<Socket&>> tls_;
};

// Unix sockets through which processes of one user on one machine reach a store: where a server
// listens, and how its clients connect. Values and plain functions, [any-thread].
//
// The kernel keeps other users out when they connect. Either the socket's file has mode 0600 in a
// private folder, or the socket has no name: its file is removed as soon as it is bound, and
// clients reach it as /proc/<process>/fd/<n>, which is open only to those who may inspect the
// process. A socket without a name leaves nothing on disk, however its process ends. An abstract
// socket would let everyone connect, and a client can send descriptors along; closing its
// connection closes those, too, which takes as long as it likes (a TCP socket's SO_LINGER). In
// addition, each end compares the user at the other end, as the kernel reports it (SO_PEERCRED),
// with its own.

// Whether a store's host is the path of a Unix socket.
inline bool is_local(const std::string& host) { return !host.empty() && host.front() == '/'; }

class LocalListener {
 public:
  // Bound and listening on return. folder: a private one, first cleared of sockets that killed
  // processes of this machine left; "": without a name. Throws Error(kIo) naming the folder.
  explicit LocalListener(const std::string& folder);
  ~LocalListener();  // removes the file
  LocalListener(const LocalListener&) = delete;
  LocalListener& operator=(const LocalListener&) = delete;

  const std::string& path() const { return path_; }  // for connect_locally()
  UniqueFd take_socket() { return std::move(socket_); }

 private:
  UniqueFd socket_;
  UniqueFd place_;  // without a name: what path_ refers to
  std::string path_;
};

// If the listener's queue is full, waits for a place until the deadline. Throws, naming the path,
// Error(kPeerLost), or Error(kTimeout) if the deadline has passed. If another user listens there,
// throws Error(kPeerLost) naming that user too, before anything is sent.
UniqueFd connect_locally(const std::string& path, Deadline deadline);

// The user at the other end of a connected Unix socket: the client, or the listener.
uid_t user_of_peer(int socket);

}  // namespace coupler::store

// StoreStream: the server's end of one connection, plain or with TLS. On the server's io thread
// only; at most one read and one write in flight at a time.
#pragma once

#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/write.hpp>
#include <optional>
#include <utility>

#include "store/store_tls.h"

namespace coupler {

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

}  // namespace coupler

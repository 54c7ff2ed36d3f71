// StoreLink: a client's connection to a store, plain or with TLS. One thread may send while
// another receives; calls have deadlines.
#pragma once

#include <openssl/ssl.h>

#include <memory>
#include <mutex>
#include <utility>

#include "base/socket_io.h"
#include "store/store_tls.h"

namespace coupler {

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

}  // namespace coupler

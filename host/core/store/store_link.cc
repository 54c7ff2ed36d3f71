#include "store/store_link.h"

#include <coupler/error.h>
#include <openssl/err.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <utility>

namespace coupler {
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

}  // namespace coupler

// TLS 1.3 for a job's store, without certificates: both sides know the job's secret, and a key
// derived from it (HKDF) is TLS's external pre-shared key. A side that does not know it cannot
// finish the handshake. A fresh Diffie-Hellman exchange is part of it, so a secret that leaks later
// does not decrypt recorded traffic. Contexts are [any-thread].
#pragma once

#include <openssl/ssl.h>

#include <memory>

#include "base/secret.h"

namespace coupler {

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

}  // namespace coupler

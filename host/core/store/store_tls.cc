#include "store/store_tls.h"

#include <coupler/error.h>

#include <string_view>

namespace coupler {
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

}  // namespace coupler

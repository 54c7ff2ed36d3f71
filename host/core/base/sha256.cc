#include "base/sha256.h"

#include <coupler/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <sys/random.h>

#include <array>
#include <memory>
#include <string>

namespace coupler {
namespace {

void require(bool good, const char* what) {
  if (!good) {
    throw Error(ErrorCode::kInternal, std::string(what) + " failed in OpenSSL");
  }
}

// OpenSSL would free its state when the process exits, while threads of communicators that a
// program never destroys still authenticate what they receive. At load, since it has an effect only
// before any other use, of TLS, say.
[[maybe_unused]] const int kKeptUntilTheEnd =
    ::OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr);

// Fetched once: OpenSSL searches its providers at every use of EVP_sha256().
const EVP_MD* sha256() {
  static const EVP_MD* const kDigest = ::EVP_MD_fetch(nullptr, "SHA256", nullptr);
  return kDigest;
}

}  // namespace

Bytes32 random_bytes32() {
  Bytes32 bytes{};
  // Up to 256 bytes arrive whole and uninterrupted once the kernel's pool is seeded.
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    throw Error(ErrorCode::kInternal, "the kernel gave no random bytes (getrandom failed)");
  }
  return bytes;
}

Bytes32 hmac_sha256(const Bytes32& key, std::string_view data) {
  Bytes32 mac{};
  require(::HMAC(sha256(), key.data(), static_cast<int>(key.size()),
                 reinterpret_cast<const unsigned char*>(data.data()), data.size(), mac.data(),
                 nullptr) != nullptr,
          "HMAC-SHA256");
  return mac;
}

Bytes32 derive_key(const Bytes32& secret, std::string_view purpose) {
  const std::unique_ptr<EVP_KDF, decltype(&::EVP_KDF_free)> kdf(
      ::EVP_KDF_fetch(nullptr, "HKDF", nullptr), &::EVP_KDF_free);
  require(kdf != nullptr, "HKDF");
  const std::unique_ptr<EVP_KDF_CTX, decltype(&::EVP_KDF_CTX_free)> context(
      ::EVP_KDF_CTX_new(kdf.get()), &::EVP_KDF_CTX_free);
  std::string digest = "SHA256";
  Bytes32 in = secret;  // OpenSSL's parameters are not const
  std::string info(purpose);
  const std::array<OSSL_PARAM, 4> params = {
      ::OSSL_PARAM_construct_utf8_string("digest", digest.data(), 0),
      ::OSSL_PARAM_construct_octet_string("key", in.data(), in.size()),
      ::OSSL_PARAM_construct_octet_string("info", info.data(), info.size()),
      ::OSSL_PARAM_construct_end()};
  Bytes32 key{};
  require(context != nullptr &&
              ::EVP_KDF_derive(context.get(), key.data(), key.size(), params.data()) == 1,
          "HKDF");
  return key;
}

void Digest::Free::operator()(evp_md_ctx_st* context) const { ::EVP_MD_CTX_free(context); }

Digest::Digest() : context_(::EVP_MD_CTX_new()) {
  require(context_ != nullptr && ::EVP_DigestInit_ex(context_.get(), sha256(), nullptr) == 1,
          "SHA-256");
}

Digest::Digest(const Digest& other) : context_(::EVP_MD_CTX_new()) {
  require(context_ != nullptr && ::EVP_MD_CTX_copy_ex(context_.get(), other.context_.get()) == 1,
          "SHA-256");
}

Digest::~Digest() = default;

Digest& Digest::update(std::string_view text) {
  require(::EVP_DigestUpdate(context_.get(), text.data(), text.size()) == 1, "SHA-256");
  return *this;
}

Bytes32 Digest::finish() {
  Bytes32 digest{};
  require(::EVP_DigestFinal_ex(context_.get(), digest.data(), nullptr) == 1, "SHA-256");
  return digest;
}

bool equal_constant_time(const Bytes32& a, const uint8_t* b) {
  return ::CRYPTO_memcmp(a.data(), b, a.size()) == 0;
}

std::string to_hex(const Bytes32& bytes) { return fmt::format("{:02x}", fmt::join(bytes, "")); }

bool from_hex(std::string_view text, Bytes32& bytes) {
  if (text.size() != 2 * bytes.size()) {
    return false;
  }
  constexpr std::string_view kDigits = "0123456789abcdef";
  for (size_t i = 0; i < bytes.size(); ++i) {
    const size_t high = kDigits.find(text[2 * i]);
    const size_t low = kDigits.find(text[2 * i + 1]);
    if (high == std::string_view::npos || low == std::string_view::npos) {
      return false;
    }
    bytes[i] = static_cast<uint8_t>(high * 16 + low);
  }
  return true;
}

}  // namespace coupler

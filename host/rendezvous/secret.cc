#include "rendezvous/secret.h"

#include <coupler/error.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

namespace coupler {

Bytes32 random_bytes32() {
  Bytes32 bytes{};
  // Up to 256 bytes arrive whole and uninterrupted once the kernel's pool is seeded.
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    throw Error(ErrorCode::kInternal, "the kernel gave no random bytes (getrandom failed)");
  }
  return bytes;
}

Bytes32 hmac_sha256(const Bytes32& key, std::span<const uint8_t> data) {
  Bytes32 mac{};
  if (::HMAC(::EVP_sha256(), key.data(), static_cast<int>(key.size()), data.data(), data.size(),
             mac.data(), nullptr) == nullptr) {
    throw Error(ErrorCode::kInternal, "HMAC-SHA256 failed in OpenSSL");
  }
  return mac;
}

bool equal_constant_time(const Bytes32& a, const uint8_t* b) {
  return ::CRYPTO_memcmp(a.data(), b, a.size()) == 0;
}

std::string to_hex(const Bytes32& bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(64);
  for (const uint8_t byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

bool from_hex(std::string_view text, Bytes32& bytes) {
  if (text.size() != 2 * bytes.size()) {
    return false;
  }
  const auto digit = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  };
  for (size_t i = 0; i < bytes.size(); ++i) {
    const int high = digit(text[2 * i]);
    const int low = digit(text[2 * i + 1]);
    if (high < 0 || low < 0) {
      return false;
    }
    bytes[i] = static_cast<uint8_t>(high * 16 + low);
  }
  return true;
}

}  // namespace coupler

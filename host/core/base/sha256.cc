#include "base/sha256.h"

#include <coupler/error.h>
#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace coupler {
namespace {

std::string hash_file(const std::string& path, int fd) {
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                        &EVP_MD_CTX_free);
  if (!context || EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) != 1) {
    throw Error(ErrorCode::kInternal, "OpenSSL does not support SHA-256");
  }
  std::vector<char> buffer(size_t{256} * 1024);
  for (off_t offset = 0;;) {
    const ssize_t got = pread(fd, buffer.data(), buffer.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      throw Error(ErrorCode::kPlugin,
                  fmt::format("plugin {} cannot be read: {}", path, std::strerror(errno)),
                  {-1, path, {}});
    }
    if (got == 0) break;
    if (EVP_DigestUpdate(context.get(), buffer.data(), static_cast<size_t>(got)) != 1) {
      throw Error(ErrorCode::kInternal, "OpenSSL could not compute a SHA-256");
    }
    offset += got;
  }
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest = {};
  unsigned size = 0;
  if (EVP_DigestFinal_ex(context.get(), digest.data(), &size) != 1) {
    throw Error(ErrorCode::kInternal, "OpenSSL could not compute a SHA-256");
  }
  std::string text;
  for (unsigned i = 0; i < size; ++i) text += fmt::format("{:02x}", digest[i]);
  return text;
}

}  // namespace

void check_sha256(const std::string& path, int fd, const std::string& wanted) {
  std::string pin = wanted;
  std::transform(pin.begin(), pin.end(), pin.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const bool is_hex =
      std::all_of(pin.begin(), pin.end(), [](unsigned char c) { return std::isxdigit(c) != 0; });
  if (pin.size() != 64 || !is_hex) {
    throw Error(ErrorCode::kConfig,
                fmt::format("backend.sha256 = \"{}\" is not a SHA-256: 64 hexadecimal digits are "
                            "expected",
                            wanted),
                {-1, "backend.sha256", fmt::format("print it with: sha256sum {}", path)});
  }
  const std::string found = hash_file(path, fd);
  if (found == pin) return;
  throw Error(ErrorCode::kPlugin,
              fmt::format("plugin {} is not the file that backend.sha256 pins: its SHA-256 is {}, "
                          "expected {}",
                          path, found, pin),
              {-1, path, "restore the file, or update backend.sha256 if the change was intended"});
}

namespace {

EVP_MD_CTX* native(void* context) { return static_cast<EVP_MD_CTX*>(context); }

void require(bool good, const char* what) {
  if (!good) {
    throw Error(ErrorCode::kInternal, std::string(what) + " failed in OpenSSL");
  }
}

// Fetched once: OpenSSL searches its providers at every use of EVP_sha256().
const EVP_MD* sha256() {
  static const EVP_MD* const kDigest = [] {
    const EVP_MD* fetched = ::EVP_MD_fetch(nullptr, "SHA256", nullptr);
    return fetched != nullptr ? fetched : ::EVP_sha256();
  }();
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

Bytes32 hmac_sha256(const Bytes32& key, std::span<const uint8_t> data) {
  Bytes32 mac{};
  require(::HMAC(sha256(), key.data(), static_cast<int>(key.size()), data.data(), data.size(),
                 mac.data(), nullptr) != nullptr,
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

void Digest::Free::operator()(void* context) const { ::EVP_MD_CTX_free(native(context)); }

Digest::Digest() : context_(::EVP_MD_CTX_new()) {
  require(
      context_ != nullptr && ::EVP_DigestInit_ex(native(context_.get()), sha256(), nullptr) == 1,
      "SHA-256");
}

Digest::Digest(const Digest& other) : context_(::EVP_MD_CTX_new()) {
  require(context_ != nullptr &&
              ::EVP_MD_CTX_copy_ex(native(context_.get()), native(other.context_.get())) == 1,
          "SHA-256");
}

Digest::~Digest() = default;

Digest& Digest::update(std::string_view text) {
  require(::EVP_DigestUpdate(native(context_.get()), text.data(), text.size()) == 1, "SHA-256");
  return *this;
}

Bytes32 Digest::finish() {
  Bytes32 digest{};
  require(::EVP_DigestFinal_ex(native(context_.get()), digest.data(), nullptr) == 1, "SHA-256");
  return digest;
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

// SHA-256, and the job's secret with what is computed from it. Plain functions, [any-thread]; a
// Digest belongs to one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

struct evp_md_ctx_st;  // OpenSSL's EVP_MD_CTX

namespace coupler {

// 32 bytes: a secret that only the processes of one job know, a nonce, a session key, or a MAC.
using Bytes32 = std::array<uint8_t, 32>;

Bytes32 random_bytes32();  // from the kernel

Bytes32 hmac_sha256(const Bytes32& key, std::string_view data);

// A key for one purpose, which reveals nothing about the secret or other keys: HKDF-SHA256.
Bytes32 derive_key(const Bytes32& secret, std::string_view purpose);

// Takes the same time wherever the first difference is.
bool equal_constant_time(const Bytes32& a, const uint8_t* b);

// A SHA-256 in progress. A copy continues from the original's state, so that inputs with a common
// prefix hash that prefix only once.
class Digest {
 public:
  Digest();
  Digest(const Digest& other);
  Digest& operator=(const Digest&) = delete;
  ~Digest();

  Digest& update(std::string_view text);
  Bytes32 finish();  // ends it

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

// Lower-case hexadecimal, for the job file; from_hex is false if text is not 64 such digits.
std::string to_hex(const Bytes32& bytes);
bool from_hex(std::string_view text, Bytes32& bytes);

}  // namespace coupler

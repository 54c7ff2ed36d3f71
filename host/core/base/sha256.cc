#include "base/sha256.h"

#include <coupler/error.h>
#include <fmt/format.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <memory>
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

}  // namespace coupler

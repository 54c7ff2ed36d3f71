// FileStore: a db_store over a folder, for ranks that a test forks. A key is a file; a counter is a
// file that is changed under a lock. The secret from which keys are derived is not in any file.
// [any-thread], any process.
#pragma once

#include <coupler/distributed_backend.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>

namespace backend_test {

class FileStore {
 public:
  // secret: the job's; empty if it has none.
  explicit FileStore(std::string folder, std::string secret = {})
      : folder_(std::move(folder)), secret_(std::move(secret)) {
    table_ = {sizeof table_, this, set, get, add, secret_.empty() ? nullptr : derive_key};
  }
  FileStore(const FileStore&) = delete;
  FileStore& operator=(const FileStore&) = delete;

  const db_store* table() const { return &table_; }

 private:
  std::string path(const char* key, const char* kind) const {
    std::string name = key;
    for (char& c : name)
      if (c == '/') c = '_';
    return folder_ + "/" + kind + name;
  }

  static db_status set(void* context, const char* key, const void* value, uint64_t size,
                       db_error*) {
    const auto* self = static_cast<const FileStore*>(context);
    const std::string target = self->path(key, "v.");
    const std::string beside = target + "." + std::to_string(getpid());
    std::FILE* file = std::fopen(beside.c_str(), "wb");
    if (file == nullptr) return DB_ERR_SYSTEM;
    std::fwrite(value, 1, size, file);
    std::fclose(file);
    return std::rename(beside.c_str(), target.c_str()) == 0 ? DB_OK : DB_ERR_SYSTEM;
  }

  static db_status get(void* context, const char* key, void* value, uint64_t* size,
                       int64_t timeout_ns, db_error*) {
    const auto* self = static_cast<const FileStore*>(context);
    const std::string source = self->path(key, "v.");
    const auto end = std::chrono::steady_clock::now() +
                     std::chrono::nanoseconds(timeout_ns < 0 ? 30'000'000'000 : timeout_ns);
    std::FILE* file = nullptr;
    while ((file = std::fopen(source.c_str(), "rb")) == nullptr) {
      if (std::chrono::steady_clock::now() >= end) return DB_ERR_TIMEOUT;
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    const uint64_t have = std::filesystem::file_size(source);
    const bool fits = have <= *size;
    if (fits && std::fread(value, 1, have, file) != have) std::abort();
    std::fclose(file);
    *size = have;
    return fits ? DB_OK : DB_ERR_BUFFER_TOO_SMALL;
  }

  static db_status add(void* context, const char* key, int64_t delta, int64_t* result, db_error*) {
    const auto* self = static_cast<const FileStore*>(context);
    const int fd = open(self->path(key, "n.").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) return DB_ERR_SYSTEM;
    flock(fd, LOCK_EX);
    int64_t number = 0;
    const bool there = pread(fd, &number, sizeof number, 0) == sizeof number;
    *result = (there ? number : 0) + delta;
    const bool written = pwrite(fd, result, sizeof *result, 0) == sizeof *result;
    close(fd);
    return written ? DB_OK : DB_ERR_SYSTEM;
  }

  static db_status derive_key(void* context, const char* purpose, uint8_t key[32], db_error*) {
    const std::string& secret = static_cast<const FileStore*>(context)->secret_;
    return HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
                reinterpret_cast<const unsigned char*>(purpose), std::strlen(purpose), key,
                nullptr) != nullptr
               ? DB_OK
               : DB_ERR_SYSTEM;
  }

  std::string folder_, secret_;
  db_store table_{};
};

}  // namespace backend_test

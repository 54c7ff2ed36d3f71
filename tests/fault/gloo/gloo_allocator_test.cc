// gloo_cpu in a program that defines malloc and does not link OpenSSL: the backend's libraries,
// opened with RTLD_DEEPBIND directly or indirectly, must use the program's malloc. Otherwise a
// block that one side allocates and the other frees ends the program.
#include <coupler/distributed_backend.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <link.h>

#include <atomic>
#include <cstddef>
#include <string>

extern "C" {
void* __libc_malloc(size_t size);
void* __libc_realloc(void* block, size_t size);
void* __libc_calloc(size_t count, size_t size);
void __libc_free(void* block);
}

namespace {
std::atomic<int64_t> allocations{0};
}

extern "C" {
void* malloc(size_t size) {
  ++allocations;
  return __libc_malloc(size);
}
void* realloc(void* block, size_t size) { return __libc_realloc(block, size); }
void* calloc(size_t count, size_t size) { return __libc_calloc(count, size); }
void free(void* block) { __libc_free(block); }
}

namespace backend_test {
namespace {

// The path of the loaded library whose file name begins with name; "" if there is none.
std::string loaded_library(const std::string& name) {
  struct Search {
    std::string name, path;
  } search{"/" + name, ""};
  dl_iterate_phdr(
      [](dl_phdr_info* library, size_t, void* context) {
        auto* const wanted = static_cast<Search*>(context);
        const std::string path = library->dlpi_name;
        if (path.find(wanted->name) != std::string::npos) wanted->path = path;
        return 0;
      },
      &search);
  return search.path;
}

TEST(GlooAllocator, LibrariesOfTheBackend_UseTheProgramsMalloc) {
  ASSERT_EQ(loaded_library("libcrypto.so"), "") << "the test itself is linked to it";
  void* const library = dlopen(COUPLER_BACKEND_PATH, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  const DistributedBackend* const backend =
      reinterpret_cast<db_entry_function>(dlsym(library, DB_ENTRY_SYMBOL))();
  int32_t score = 0;
  char reason[256] = "";
  ASSERT_EQ(backend->probe(nullptr, &score, reason, sizeof reason), DB_OK);
  ASSERT_GT(score, 0) << reason;

  const std::string path = loaded_library("libcrypto.so");
  ASSERT_NE(path, "");
  void* const crypto = dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(crypto, nullptr) << dlerror();
  const auto allocate =
      reinterpret_cast<void* (*)(size_t, const char*, int)>(dlsym(crypto, "CRYPTO_malloc"));
  const auto release =
      reinterpret_cast<void (*)(void*, const char*, int)>(dlsym(crypto, "CRYPTO_free"));
  ASSERT_NE(allocate, nullptr);
  ASSERT_NE(release, nullptr);
  const int64_t before = allocations;
  void* const block = allocate(100, "", 0);
  EXPECT_GT(allocations, before) << "libcrypto bypasses the program's malloc";
  release(block, "", 0);
}

}  // namespace
}  // namespace backend_test

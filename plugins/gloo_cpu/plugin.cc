// The thin library: the backend's table and the loader of its implementation.
//
// The implementation is linked to libgloo, whose collectives run over its connections if the option
// algorithm is "gloo", and to OpenSSL, which authenticates and protects the connections.
//
// libtorch_cpu.so exports 310 gloo:: symbols that Debian's libgloo also defines, in another
// version. In a program linked to LibTorch, references from the implementation and libgloo itself
// would bind to those and crash. So this library is not linked to libgloo; it opens the
// implementation with RTLD_DEEPBIND, which makes it and libgloo search their own libraries first.
//
// A program may preload another allocator or replace operator new; with RTLD_DEEPBIND, one
// allocator must never free the memory of another. So libgloo's dependencies (libibverbs, whose
// libraries free memory from C functions; libhiredis) and OpenSSL, which does the same, are first
// opened without that flag; the implementation and libgloo use the program's operators
// (operators.cc); and neither of the two calls malloc or free itself.
#include <coupler/distributed_backend.h>
#include <dlfcn.h>

#include <mutex>
#include <string>

#include "common/error.h"
#include "gloo_cpu/implementation.h"

namespace db::gloo_cpu {
namespace {

constexpr char kImplementationFile[] = "libcoupler_gloo_cpu_impl.so";

struct Loaded {
  const Implementation* implementation = nullptr;
  std::string problem;
};

extern "C" DB_EXPORT const DistributedBackend* coupler_distributed_backend_v1();

// Only next to this library.
std::string implementation_path() {
  Dl_info self{};
  const auto address = reinterpret_cast<const void*>(&coupler_distributed_backend_v1);
  if (dladdr(address, &self) == 0 || self.dli_fname == nullptr) return kImplementationFile;
  const std::string path = self.dli_fname;
  return path.substr(0, path.rfind('/') + 1) + kImplementationFile;
}

// Failures are ignored: opening the implementation then reports them in better words.
void open_dependencies() {
  std::string names = COUPLER_GLOO_OPENED_FIRST ":";
  for (size_t begin = 0, end; (end = names.find(':', begin)) != std::string::npos; begin = end + 1)
    (void)dlopen(names.substr(begin, end - begin).c_str(), RTLD_NOW | RTLD_LOCAL);
}

Loaded load() {
  Loaded loaded;
  open_dependencies();
  int flags = RTLD_NOW | RTLD_LOCAL;
#if !defined(COUPLER_SANITIZED)
  flags |= RTLD_DEEPBIND;  // sanitizers reject it, but their programs are not linked to LibTorch
#endif
  const std::string path = implementation_path();
  void* const library = dlopen(path.c_str(), flags);
  if (library == nullptr) {
    const char* const reason = dlerror();
    loaded.problem = std::string("cannot open ") + path + ": " + (reason ? reason : "?") +
                     "; it needs libgloo and OpenSSL 3 (Debian: apt-get install libgloo0 libssl3)";
    return loaded;
  }
  const auto entry =
      reinterpret_cast<ImplementationEntry>(dlsym(library, COUPLER_GLOO_CPU_IMPLEMENTATION));
  if (entry == nullptr) {
    loaded.problem = path + " is from another build of this backend; install both files together";
    return loaded;
  }
  loaded.implementation = entry();
  return loaded;
}

// Opened on first use and never closed.
const Loaded& loaded() {
  static const Loaded kLoaded = load();
  return kLoaded;
}

db_status probe(const db_host*, int32_t* score, char* reason, uint64_t reason_capacity) {
  try {
    const Loaded& found = loaded();
    *score = found.implementation != nullptr ? 10 : 0;
    if (found.implementation != nullptr) {
      found.implementation->describe(reason, reason_capacity);
    } else {
      copy_text(reason, reason_capacity, found.problem.c_str());
    }
  } catch (...) {
    *score = 0;
    copy_text(reason, reason_capacity, "out of memory");
  }
  return DB_OK;
}

db_status create(const db_communicator_params* params, db_communicator** result, db_error* error) {
  return guarded("gloo_cpu: ", error, [&] {
    const Loaded& found = loaded();
    if (found.implementation != nullptr) return found.implementation->create(params, result, error);
    *result = nullptr;
    return report(DB_ERR_UNSUPPORTED, "gloo_cpu: " + found.problem, error);
  });
}

constexpr DistributedBackend kBackend = {
    sizeof(DistributedBackend),
    DB_ABI_MAJOR,
    DB_ABI_MINOR,
    "gloo_cpu",
    "0.1.0",
    "Host memory over Unix sockets within a machine and TCP between machines; own collectives or "
    "libgloo's",
    DB_CAP_ABORT | DB_CAP_SPLIT | DB_CAP_HOST_MEMORY,
    probe,
    default_options<kOptions>,
    create,
    nullptr,  // get_extension
};

}  // namespace

extern "C" DB_EXPORT const DistributedBackend* coupler_distributed_backend_v1() {
  return &kBackend;
}

}  // namespace db::gloo_cpu

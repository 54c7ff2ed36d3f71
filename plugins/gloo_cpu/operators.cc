// operator new and delete for the implementation and libgloo: the program's.
//
// Opened with RTLD_DEEPBIND, both would use libstdc++'s operators, while libstdc++ itself (which
// allocates and frees the buffers of strings and streams) uses the program's, if it replaces them.
// So these forward to the program's operators; they are exported because libgloo binds to them.
#include <dlfcn.h>

#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

struct Program {
  void* (*allocate)(std::size_t);
  void (*free)(void*);
  void* (*allocate_aligned)(std::size_t, std::align_val_t);
  void (*free_aligned)(void*, std::align_val_t);
};

template <class Function>
void find(void* global, const char* name, Function* function) {
  // RTLD_DEFAULT would be this library's own scope, which begins with the functions below.
  void* found = dlsym(global, name);
  if (found == nullptr) found = dlsym(RTLD_NEXT, name);  // in a C program: our libstdc++'s
  if (found == nullptr) std::abort();                    // cannot happen: it has them all
  *function = reinterpret_cast<Function>(found);
}

const Program& program() {
  static const Program kProgram = [] {
    Program found{};
    void* const global = dlopen(nullptr, RTLD_NOW);
    find(global, "_Znwm", &found.allocate);
    find(global, "_ZdlPv", &found.free);
    find(global, "_ZnwmSt11align_val_t", &found.allocate_aligned);
    find(global, "_ZdlPvSt11align_val_t", &found.free_aligned);
    return found;
  }();
  return kProgram;
}

}  // namespace

#define COUPLER_EXPORT __attribute__((visibility("default")))

COUPLER_EXPORT void* operator new(std::size_t size) { return program().allocate(size); }
COUPLER_EXPORT void operator delete(void* pointer) noexcept { program().free(pointer); }
COUPLER_EXPORT void operator delete(void* pointer, std::size_t) noexcept {
  program().free(pointer);
}
COUPLER_EXPORT void* operator new(std::size_t size, std::align_val_t alignment) {
  return program().allocate_aligned(size, alignment);
}
COUPLER_EXPORT void operator delete(void* pointer, std::align_val_t alignment) noexcept {
  program().free_aligned(pointer, alignment);
}
COUPLER_EXPORT void operator delete(void* pointer, std::size_t,
                                    std::align_val_t alignment) noexcept {
  program().free_aligned(pointer, alignment);
}

// operator new and delete with a mark before each block: freeing a block from another allocator
// ends the program. In a separate file, so that the compiler cannot optimize them away.
#include <cstdint>
#include <cstdlib>
#include <new>

namespace {
constexpr uint64_t kMark = 0x6d61726b65642121;
}

void* operator new(size_t size) {
  auto* block = static_cast<uint64_t*>(std::malloc(size + 16));
  if (block == nullptr) throw std::bad_alloc();
  block[0] = kMark;
  return block + 2;
}

// Another allocator that is preloaded has these two as well.
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  try {
    return operator new(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void operator delete(void* pointer) noexcept {
  if (pointer == nullptr) return;
  auto* block = static_cast<uint64_t*>(pointer) - 2;
  if (block[0] != kMark) std::abort();
  block[0] = 0;
  std::free(block);
}

void operator delete(void* pointer, size_t) noexcept { operator delete(pointer); }
void operator delete(void* pointer, const std::nothrow_t&) noexcept { operator delete(pointer); }

// The memory of tensors on the CPU, in blocks of the C library's heap that fit again once they are
// freed. LibTorch asks for aligned blocks: glibc then searches for more than it takes and frees the
// rest, so a freed block is too small for the next one of its size, and the heap of a training
// process grows. These blocks are aligned within what malloc gives. They have no state: children of
// fork() may use and free them. [any-thread]
#pragma once

#include <cstddef>

namespace coupler::device {

// At least `bytes` bytes, aligned to c10::gAlignment; null if `bytes` is 0. LibTorch's own function
// does it if the program has another malloc than glibc's, or THP_MEM_ALLOC_ENABLE asks for huge
// pages. Throws c10::Error, which starts with the words of LibTorch's allocator.
void* take_heap(size_t bytes);
// Frees what take_heap() returned.
void free_heap(void* memory);
// What the C library has set aside for it, in bytes; memory must not be null.
size_t heap_size(void* memory);

// From now on, tensors on the CPU are taken from here. No effect if the program has set an
// allocator of its own, or if take_heap() is LibTorch's function; a program may still set one
// later. Earlier tensors are freed as they were allocated. Call it while no other thread allocates
// tensors.
void use_heap_allocator();

}  // namespace coupler::device

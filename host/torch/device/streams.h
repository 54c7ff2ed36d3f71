// Streams and events of any device of LibTorch, through its guards. [any-thread]: "the thread's
// stream" is the one that LibTorch's operations on the calling thread go to.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <memory>

namespace coupler {

c10::Stream current_stream(c10::Device device);

// For memory from LibTorch's allocator: when freed, it is reused only after the work queued so far
// on the thread's stream.
void hold_for_stream(const c10::DataPtr& memory);

// Marks all work queued so far on the thread's stream; null on the CPU, where work is done when it
// is issued.
std::shared_ptr<c10::Event> mark_stream(c10::Device device);
// Makes later work on the thread's stream wait for the mark. Does nothing if the mark is null.
void wait_on_stream(const std::shared_ptr<c10::Event>& mark, c10::Device device);

// Gives this thread its own stream for all later operations, so that they overlap with other
// threads' work. Call once, on our own threads. Does nothing on the CPU.
void use_own_stream(c10::Device device);

}  // namespace coupler

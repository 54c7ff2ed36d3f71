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

// Memory that LibTorch's allocator gave: when it is given back, others get it after what the
// thread's stream was given so far.
void hold_for_stream(const c10::DataPtr& memory);

// All that the thread's stream was given so far; null on the CPU, where all is done when it is
// issued, and where a device has no events.
std::shared_ptr<c10::Event> mark_stream(c10::Device device);
// What the thread's stream is given from now on comes after the mark. A null one is no mark.
void wait_on_stream(const std::shared_ptr<c10::Event>& mark, c10::Device device);

// From now on this thread's operations go to a stream of its own, beside those of others; for
// threads of ours, once. Nothing on the CPU.
void use_own_stream(c10::Device device);

}  // namespace coupler

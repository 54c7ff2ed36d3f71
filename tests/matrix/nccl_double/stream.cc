#include "stream.h"

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

namespace cuda_double {
namespace {

struct Queue {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> work;
  bool ending = false;
};

struct Stream {
  std::shared_ptr<Queue> queue = std::make_shared<Queue>();
};

void perform(const std::shared_ptr<Queue>& queue) {
  std::unique_lock lock(queue->mutex);
  for (;;) {
    queue->changed.wait(lock, [&] { return !queue->work.empty() || queue->ending; });
    if (queue->work.empty()) return;
    const std::function<void()> work = std::move(queue->work.front());
    queue->work.pop_front();
    lock.unlock();
    work();
    lock.lock();
  }
}

Stream* start() {
  auto* const stream = new Stream;
  std::thread(perform, stream->queue).detach();
  return stream;
}

Stream& stream_of(cudaStream_t stream) {
  static Stream* const standard = start();
  return stream != nullptr ? *reinterpret_cast<Stream*>(stream) : *standard;
}

}  // namespace

void enqueue(cudaStream_t stream, std::function<void()> work) {
  Queue& queue = *stream_of(stream).queue;
  {
    const std::lock_guard lock(queue.mutex);
    queue.work.push_back(std::move(work));
  }
  queue.changed.notify_one();
}

cudaStream_t make_stream() { return reinterpret_cast<cudaStream_t>(start()); }

void end_stream(cudaStream_t handle) {
  auto* const stream = reinterpret_cast<Stream*>(handle);
  {
    const std::lock_guard lock(stream->queue->mutex);
    stream->queue->ending = true;
  }
  stream->queue->changed.notify_one();
  delete stream;
}

}  // namespace cuda_double

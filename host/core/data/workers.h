// Workers: threads that do numbered pieces of work ahead of the one thread that consumes their
// results in order. Only that thread may call await() and release(). The destructor waits for the
// pieces in progress and then ends the threads.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace coupler::data {

class Workers {
 public:
  // Does piece `ticket` (0, 1, …) on worker 1, 2, …; returns false if neither that piece nor a
  // later one exists. await() rethrows what it throws; later pieces are not done then.
  using Work = std::function<bool(size_t worker, uint64_t ticket)>;

  // At most `ahead` pieces are done or in progress without having been released.
  Workers(size_t count, size_t ahead, Work work);
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // Waits for a piece; returns false if it does not exist.
  bool await(uint64_t ticket);

  // Marks a piece's result as used. Call in order.
  void release(uint64_t ticket);

 private:
  struct Piece {
    bool done = false;
    std::exception_ptr error;
  };

  void stop();
  void run(size_t worker);

  const Work work_;
  std::mutex mutex_;
  std::condition_variable more_to_do_, something_done_;
  bool stopping_ = false;
  uint64_t next_ = 0;            // the first piece not begun
  uint64_t released_ = 0;        // how many were released
  uint64_t end_ = ~uint64_t{0};  // the first piece that does not exist
  std::vector<Piece> pieces_;    // by ticket modulo their number
  std::vector<std::thread> threads_;
};

}  // namespace coupler::data

// DiskSource: units stored on a disk. A separate thread writes changed units back in the background
// (write-behind); meanwhile a fill copies them from the write queue.
//
// Call add() before any other call for that unit; the rest is [any-thread]. After a failed write
// every later fill throws, so nothing is lost silently.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "residency/block_file.h"
#include "residency/source.h"

namespace coupler {

class DiskSource : public Source {
 public:
  // most_behind: how many units may be queued for writing, at least 1; put_away() of more waits.
  DiskSource(const std::string& folder, size_t most_behind);
  ~DiskSource() override;  // drops units not written yet
  DiskSource(const DiskSource&) = delete;
  DiskSource& operator=(const DiskSource&) = delete;

  // Adds zeroed space for the next unit. Throws Error(kIo) if there is none.
  void add(uint64_t bytes);

  void fill(size_t unit, void* memory) override;
  void store(size_t unit, const void* memory) override;
  void put_away(size_t unit, BufferPool::Buffer memory) override;

 private:
  struct Place {
    uint64_t offset = 0;
    size_t bytes = 0;
  };
  struct Waiting {
    size_t unit = 0;
    BufferPool::Buffer memory;
  };

  Place place(size_t unit) const;
  void throw_if_failed() const;  // mutex_ held
  void work();

  BlockFile file_;
  const size_t most_behind_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Place> places_;    // by unit
  std::deque<Waiting> waiting_;  // the first one is being written
  std::exception_ptr error_;     // of a write
  bool over_ = false;
  std::thread thread_;  // last: it uses the rest
};

}  // namespace coupler

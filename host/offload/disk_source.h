// DiskSource: units whose place is on a disk. What is written to a unit goes back from a thread of
// its own (write-behind) while the program goes on; who wants it meanwhile gets it from there.
//
// add() before any other call for that unit; the rest is [any-thread]. Where a write has failed
// every later fill throws: nothing is lost in silence.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "offload/block_file.h"
#include "residency/source.h"

namespace coupler {

class DiskSource : public Source {
 public:
  // most_behind: units that may wait to be written, one at least; more wait for the disk.
  DiskSource(const std::string& folder, size_t most_behind);
  ~DiskSource() override;  // leaves out what is not written yet
  DiskSource(const DiskSource&) = delete;
  DiskSource& operator=(const DiskSource&) = delete;

  // Room for the next unit, zeros. Throws Error(kIo) where there is none.
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
  std::deque<Waiting> waiting_;  // the first is being written
  std::exception_ptr error_;     // of a write
  bool over_ = false;
  std::thread thread_;  // last: it uses the rest
};

}  // namespace coupler

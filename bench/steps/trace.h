// Trace: while it lives LibTorch's profiler runs; its end writes a Chrome trace. For the thread
// that trains.
#pragma once

#include <string>

namespace coupler::bench {

class Trace {
 public:
  explicit Trace(std::string path);  // empty: nothing is written
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

 private:
  const std::string path_;
};

}  // namespace coupler::bench

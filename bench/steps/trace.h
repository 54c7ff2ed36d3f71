// Trace: runs LibTorch's profiler during its lifetime; the destructor writes a Chrome trace. Used
// by the training thread.
#pragma once

#include <string>

namespace coupler::bench {

class Trace {
 public:
  explicit Trace(std::string path);  // empty: no profiling
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

 private:
  const std::string path_;
};

}  // namespace coupler::bench

// Control: lets bench/run drive a long-lived process that trains in turns with its counterparts.
// Between its turns the process blocks in a read from a Unix socket. The lines are
//   process: ready RANK PARAMETERS    driver:  go MODE STEPS    or    quit
//   process: done SECONDS CPU_BEFORE CPU_AFTER LOSS
// with the seconds of the turn and the CPU time of the whole process, from which the driver also
// computes the CPU time used between turns. Used by one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace coupler::bench {

class Control {
 public:
  // Connects to the driver's socket. Throws std::runtime_error.
  explicit Control(const std::string& path);
  ~Control();
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  // Answers "go" lines until "quit" or until the driver closes the socket. ready() synchronizes the
  // ranks before the clock starts, train() runs the steps in the given mode, and loss() returns the
  // last loss.
  struct Turn {
    std::function<void()> ready;
    std::function<void(const std::string& mode, int64_t steps)> train;
    std::function<double()> loss;
  };
  void serve(int rank, int64_t parameters, const Turn& turn);

 private:
  bool read_line(std::string& line);
  void write_line(const std::string& line) const;

  int fd_ = -1;
  std::string received_;
};

}  // namespace coupler::bench

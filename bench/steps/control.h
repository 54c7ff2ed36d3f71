// Control: how bench/run steers a long-lived process that trains in turns with its counterparts.
// While it is not its turn the process is blocked in a read of a Unix socket. The lines are
//   process: ready RANK PARAMETERS    driver:  go MODE STEPS    or    quit
//   process: done SECONDS CPU_BEFORE CPU_AFTER LOSS
// with the seconds of the turn and the processor time of the whole process, from which the driver
// also sees what was used between two turns. Used by one thread.
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

  // Answers go until quit, or until the driver is gone. ready() brings the ranks together before
  // the clock starts, train() performs the steps in the driver's mode, loss() is the last one's.
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

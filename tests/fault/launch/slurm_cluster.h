// SlurmCluster: Slurm's daemons for one node, this machine, run by a test on loopback with their
// own key, ports and folder. Single-threaded. The daemons end with the object and with the process
// that created it.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace coupler::testing_launch {

class SlurmCluster {
 public:
  static bool is_installed();
  static constexpr int kProcessors = 8;  // what the node claims to have

  SlurmCluster();
  ~SlurmCluster();
  SlurmCluster(const SlurmCluster&) = delete;
  SlurmCluster& operator=(const SlurmCluster&) = delete;

  // Waits up to 20 seconds until jobs can run; whether they can.
  bool is_up() const;
  std::string logs() const;

  struct Result {
    int code = -1;
    std::string output;  // standard output and standard error
  };
  // Runs a shell command in the cluster's folder; kills it after a minute.
  Result run(const std::string& command) const;
  // Waits up to 20 seconds until no job is left; whether none is.
  bool is_empty() const;

  const std::string& folder() const { return folder_; }

 private:
  void write_configuration() const;
  void start(const std::string& name, const std::vector<std::string>& arguments);

  std::string folder_;
  std::vector<pid_t> daemons_;
};

}  // namespace coupler::testing_launch

// SlurmCluster: Slurm's daemons for one node, this machine, run by a test: on loopback, with a key,
// ports and a folder of their own. Single-threaded; the daemons end with the object, and with the
// process that made it.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace coupler::testing_launch {

class SlurmCluster {
 public:
  static bool is_installed();
  static constexpr int kProcessors = 8;  // it pretends to have

  SlurmCluster();
  ~SlurmCluster();
  SlurmCluster(const SlurmCluster&) = delete;
  SlurmCluster& operator=(const SlurmCluster&) = delete;

  // Whether jobs can run, within 20 seconds.
  bool is_up() const;
  std::string logs() const;

  struct Result {
    int code = -1;
    std::string output;  // and errors
  };
  // A shell's command line in the cluster's folder; killed after a minute.
  Result run(const std::string& command) const;
  // Whether no job is left, within 20 seconds.
  bool is_empty() const;

  const std::string& folder() const { return folder_; }

 private:
  void write_configuration() const;
  void start(const std::string& name, const std::vector<std::string>& arguments);

  std::string folder_;
  std::vector<pid_t> daemons_;
};

}  // namespace coupler::testing_launch

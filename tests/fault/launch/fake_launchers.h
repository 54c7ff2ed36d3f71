// FakeLaunchers: a folder for PATH with programs named srun, mpirun and torchrun that print how
// they are called. Shows how `coupler launch` calls launchers that are not installed.
// Single-threaded.
#pragma once

#include <map>
#include <string>

namespace coupler::testing_launch {

class FakeLaunchers {
 public:
  FakeLaunchers();
  ~FakeLaunchers();
  FakeLaunchers(const FakeLaunchers&) = delete;
  FakeLaunchers& operator=(const FakeLaunchers&) = delete;

  // Adds a program of that name. It prints its arguments, each in brackets, on one line, then the
  // lines COUPLER_OVERRIDES=… and OMP_NUM_THREADS=…, and then runs the shell code.
  void add(const std::string& name, const std::string& shell = "exit 0") const;

  // Adds a program of that name that runs the program at path.
  void forward(const std::string& name, const std::string& path) const;

  const std::string& folder() const { return folder_; }
  // An environment whose PATH begins with the folder.
  std::map<std::string, std::string> path() const;
  // The same inside a Slurm allocation with that many tasks.
  std::map<std::string, std::string> allocation(int tasks) const;

 private:
  std::string folder_;
};

}  // namespace coupler::testing_launch

// FakeLaunchers: a folder with programs named srun, mpirun, torchrun that print how they were
// called, for PATH: what `coupler launch` asks of launchers that are not installed.
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

  // A program of that name. It prints its arguments, each in brackets on one line, then the lines
  // COUPLER_OVERRIDES=… and OMP_NUM_THREADS=…, and then does what the shell text says.
  void add(const std::string& name, const std::string& shell = "exit 0") const;

  // A program of that name that is really another one.
  void forward(const std::string& name, const std::string& path) const;

  const std::string& folder() const { return folder_; }
  // PATH with the folder first.
  std::map<std::string, std::string> path() const;
  // The same inside of an allocation of Slurm with that many tasks.
  std::map<std::string, std::string> allocation(int tasks) const;

 private:
  std::string folder_;
};

}  // namespace coupler::testing_launch

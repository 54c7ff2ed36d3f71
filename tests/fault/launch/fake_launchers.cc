#include "fake_launchers.h"

#include <stdlib.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace coupler::testing_launch {

FakeLaunchers::FakeLaunchers() {
  char name[] = "/tmp/coupler-fake-launchers-XXXXXX";
  folder_ = ::mkdtemp(name);
}

FakeLaunchers::~FakeLaunchers() { std::filesystem::remove_all(folder_); }

void FakeLaunchers::add(const std::string& name, const std::string& shell) const {
  const auto path = folder_ + "/" + name;
  std::ofstream(path) << "#!/bin/sh\n"
                         "[ \"$1\" = --version ] && { echo \"$COUPLER_FAKE_VERSION\"; exit 0; }\n"
                         "printf '"
                      << name
                      << "'; printf ' [%s]' \"$@\"; echo\n"
                         "echo \"COUPLER_OVERRIDES=$COUPLER_OVERRIDES\"\n"
                         "echo \"OMP_NUM_THREADS=$OMP_NUM_THREADS\"\n"
                      << shell << "\n";
  ::chmod(path.c_str(), 0700);
}

void FakeLaunchers::forward(const std::string& name, const std::string& path) const {
  // Not a link: launchers look for their helpers next to themselves.
  std::ofstream(folder_ + "/" + name) << "#!/bin/sh\nexec " << path << " \"$@\"\n";
  ::chmod((folder_ + "/" + name).c_str(), 0700);
}

std::map<std::string, std::string> FakeLaunchers::path() const {
  const char* path = std::getenv("PATH");
  return {{"PATH", folder_ + ":" + (path == nullptr ? "" : path)}, {"OMP_NUM_THREADS", ""}};
}

std::map<std::string, std::string> FakeLaunchers::allocation(int tasks) const {
  auto variables = path();
  variables["SLURM_JOB_ID"] = "7";
  variables["SLURM_NTASKS"] = std::to_string(tasks);
  variables["SLURM_PROCID"] = "0";  // as in the shell of sbatch
  variables["SLURM_LOCALID"] = "0";
  return variables;
}

}  // namespace coupler::testing_launch

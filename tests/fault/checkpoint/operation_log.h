// The operations of a program on a folder, in order, as disk_faults.cc logged them. Plain values.
#pragma once

#include <string>
#include <vector>

namespace coupler::testing_checkpoint {

struct Operation {
  // create, empty, open, write, truncate, fsync, hint, close, rename, remove, mkdir, report
  std::string name;
  std::string path;
  std::string other;  // a rename's new name
  long long offset;   // of a write; the new size of a truncate
  long long result;   // of the system call; below 0: it failed
  std::string data;   // the written or reported bytes
};

std::vector<Operation> read_log(const std::string& path);

// The number after the last "committed " in the reports; -1 if there is none.
long long last_committed(const std::string& reports);

}  // namespace coupler::testing_checkpoint

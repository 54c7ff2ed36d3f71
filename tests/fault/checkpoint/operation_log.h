// What a program did to a folder, as disk_faults.cc logged it, in order. Plain values.
#pragma once

#include <string>
#include <vector>

namespace coupler::testing_checkpoint {

struct Operation {
  // create, empty, open, write, truncate, fsync, hint, close, rename, remove, mkdir, report
  std::string name;
  std::string path;
  std::string other;  // the new name, of a rename
  long long offset;   // of a write; the new size, of a truncate
  long long result;   // of the system call; below 0: it failed
  std::string data;   // written or reported
};

std::vector<Operation> read_log(const std::string& path);

// The number after the last "committed " in a text of reports; -1 where there is none.
long long last_committed(const std::string& reports);

}  // namespace coupler::testing_checkpoint

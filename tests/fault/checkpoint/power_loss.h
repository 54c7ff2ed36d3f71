// A disk as POSIX promises it and no better: what was not forced to it may be there, may be
// missing, and may be there in part when the power fails. Fed with the operations of a program, it
// tells what a folder may look like after a loss of power at that moment. Single-threaded.
#pragma once

#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "operation_log.h"

namespace coupler::testing_checkpoint {

// What becomes of what was not forced to the disk.
enum class Pending {
  kLost,       // all of it
  kKept,       // none of it: as after a kill
  kNamesOnly,  // names are there, the files' bytes are not
  kZeros,      // names and sizes are there, the bytes are zero
  kDataOnly,   // bytes are there, names are not
  kRandom,     // each change by itself, writes cut anywhere
};

// Disks, and mounts, that say "done" and do nothing: for a test of the test.
struct Lies {
  bool files = false;
  bool folders = false;
};

class PowerLoss {
 public:
  // Of the folder, which is empty, and everything below it.
  explicit PowerLoss(std::string folder, Lies lies = {});

  void apply(const Operation& operation);

  // Writes what is left into another folder, which is empty.
  void leave(const std::string& folder, Pending pending, uint64_t seed) const;

 private:
  struct NameChange {
    std::string removed;  // "" for none
    std::string added;    // "" for none
    size_t node = 0;
  };
  struct DataChange {
    bool is_size = false;
    size_t offset = 0;
    std::string data;
  };
  struct Node {
    bool is_folder = false;
    std::map<std::string, size_t> names, kept_names;
    std::vector<NameChange> name_changes;  // since the last fsync
    std::string kept_data;
    std::vector<DataChange> data_changes;
  };

  size_t find(const std::string& path) const;  // kNone
  size_t add(const std::string& path, bool is_folder);
  void change_names(size_t folder, const NameChange& change);
  static void change(std::map<std::string, size_t>& names, const NameChange& change);
  static void change(std::string& data, const DataChange& change);
  void leave_node(const Node& node, const std::string& path, Pending pending,
                  std::mt19937_64& random) const;

  std::string folder_;
  Lies lies_;
  std::vector<Node> nodes_;
};

}  // namespace coupler::testing_checkpoint

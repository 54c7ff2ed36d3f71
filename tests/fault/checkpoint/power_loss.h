// A disk that keeps only what POSIX promises: data that was not synced may be present, missing or
// partly present after a power loss. It replays the operations of a program and produces the
// possible states of a folder after a power loss at that moment. Single-threaded.
#pragma once

#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "operation_log.h"

namespace coupler::testing_checkpoint {

// What happens to changes that were not synced.
enum class Pending {
  kLost,       // all are lost
  kKept,       // all are kept, as after a kill
  kNamesOnly,  // names are kept, the files' bytes are lost
  kZeros,      // names and sizes are kept, the bytes are zero
  kDataOnly,   // bytes are kept, names are lost
  kRandom,     // each change independently, writes cut anywhere
};

// Disks and mounts that report success of a sync but do nothing, to test the tests.
struct Lies {
  bool files = false;
  bool folders = false;
};

class PowerLoss {
 public:
  // Models the folder, which is empty, and everything below it.
  explicit PowerLoss(std::string folder, Lies lies = {});

  void apply(const Operation& operation);

  // Writes the state after the power loss to another folder, which is empty.
  void leave(const std::string& folder, Pending pending, uint64_t seed) const;

 private:
  struct NameChange {
    std::string removed;  // "": none
    std::string added;    // "": none
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

  size_t find(const std::string& path) const;  // kNone: not found
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

// Command line of merge-weights and checkpoint convert, which read and write weights: two paths and
// flags. Single-threaded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "weights/write_weights.h"

namespace coupler::cli {

struct WeightFlag {
  std::string_view name;  // with hyphens; underscores are accepted in their place, as in Accelerate
  bool has_value = false;
};

struct WeightArguments {
  std::string source;
  std::string target;
  std::optional<uint64_t> max_shard_size;
  size_t model = 0;
  std::string key;
  std::set<std::string> switches;  // the flags without a value that were given

  bool has(const std::string& flag) const { return switches.count(flag) != 0; }
};

// Accepts "--max-shard-size", "--model", "--key" and switches, as far as `flags` lists them. Throws
// Error(kUsage) naming the command, and for an unknown flag the nearest known one.
WeightArguments read_weight_arguments(const std::string& command,
                                      const std::vector<std::string>& arguments,
                                      const std::vector<WeightFlag>& flags);

// "out: 12 tensors, 1.5 GiB in 2 files".
std::string written_text(const std::string& target, const WrittenWeights& written);

}  // namespace coupler::cli

// Training on two hosts with two ranks each, over hierarchical: replicas, and models that are
// sharded among all ranks or among those of a host. The checks of sharding_checks train the same
// model in one process, too, and compare losses, norms of gradients and weights.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "hierarchical_hosts.h"

namespace coupler {
namespace {

struct Division {
  const char* name;
  const char* use;      // backend.use
  const char* options;  // of that backend
  const char* expect;   // what sharding_checks must find
};

class HierarchicalTraining : public HierarchicalHosts,
                             public ::testing::WithParamInterface<Division> {};

// The model is small: with a smaller small_bytes, both ranks of each host send across.
TEST_P(HierarchicalTraining, TwoRanksOnEachHost_LearnAsOneProcess) {
  const Division& division = GetParam();
  const std::string program = fmt::format(
      "sharding_checks --expect {} {} -o backend.hierarchical.small_bytes=256 "
      "-o backend.peer_timeout=60s",
      division.expect, division.options);
  const auto result = run({2, 2}, program, {2, 2}, division.use);
  for (size_t host = 0; host < 2; ++host) {
    const std::string& text = result.output[host];
    EXPECT_EQ(result.code[host], 0) << text;
    for (const char* check : {"losses_of_twenty_steps", "norm_is_global", "two_models"})
      EXPECT_NE(text.find(fmt::format("ok {}\n", check)), std::string::npos)
          << check << " is not in: " << text;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Divisions, HierarchicalTraining,
    ::testing::Values(
        Division{"replicas", "hierarchical", "", "replicated"},
        Division{"full_shard", "fsdp",
                 "-o backend.fsdp.base=hierarchical -o backend.fsdp.unit_join_below=0", "gathered"},
        // Within each host, as group_size is not set.
        Division{"hybrid_shard", "fsdp",
                 "-o backend.fsdp.base=hierarchical -o backend.fsdp.unit_join_below=0 "
                 "-o backend.fsdp.strategy=hybrid_shard",
                 "gathered"},
        Division{"stage2", "deepspeed_like",
                 "-o backend.deepspeed_like.base=hierarchical -o backend.deepspeed_like.stage=2 "
                 "-o backend.deepspeed_like.reduce_bucket_size=300",
                 "divided"},
        Division{"stage3", "deepspeed_like",
                 "-o backend.deepspeed_like.base=hierarchical -o backend.deepspeed_like.stage=3 "
                 "-o backend.deepspeed_like.stage3_param_persistence_threshold=0",
                 "gathered"}),
    [](const auto& row) { return row.param.name; });

}  // namespace
}  // namespace coupler

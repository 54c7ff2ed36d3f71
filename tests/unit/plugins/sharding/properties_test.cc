// Properties of every plan, whatever the model, the number of ranks and the options: every element
// has one owner or its parameter is in no unit; units are disjoint and of one dtype; all ranks have
// the same units. Random models from fixed seeds.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <utility>

#include "sharding_plugin.h"

namespace db {
namespace {

constexpr int kModels = 12;
constexpr int32_t kLargestWorld = 7;

class Random {
 public:
  explicit Random(uint32_t seed) : generator_(seed) {}
  uint64_t below(uint64_t end) { return generator_() % end; }

 private:
  std::mt19937 generator_;
};

void make_random(TestModel& model, uint32_t seed) {
  Random random(seed);
  static constexpr const char* kTypes[] = {"torch::nn::LinearImpl", "my::BlockImpl", "Norm"};
  const uint64_t modules = random.below(12);
  for (uint64_t i = 0; i < modules; ++i) {
    const uint64_t parent = random.below(model.modules().size());
    const std::string above = model.modules()[parent].name;
    const std::string name = (above.empty() ? "" : above + ".") + "m" + std::to_string(i);
    model.add_module(name, kTypes[random.below(3)], static_cast<int64_t>(parent));
  }
  for (size_t module = 0; module < model.modules().size(); ++module) {
    const uint64_t parameters = random.below(4);
    for (uint64_t i = 0; i < parameters; ++i) {
      std::vector<uint64_t> sizes(random.below(4));
      for (uint64_t& size : sizes) size = random.below(10) == 0 ? 0 : random.below(40);
      const db_dtype dtype = random.below(8) == 0 ? DB_F64 : DB_F32;
      model.add_parameter(module, "p" + std::to_string(i), sizes, dtype, random.below(5) != 0);
    }
  }
}

bool same_on_all_ranks(const Plan& a, const Plan& b) {
  return a.units == b.units && a.prefetch == b.prefetch && a.live_elements == b.live_elements &&
         a.reduce_bytes == b.reduce_bytes && a.overlap == b.overlap;
}

// Returns the parameters that are in a unit.
std::set<uint64_t> expect_sound(const Plan& plan, TestModel& model, int32_t ranks) {
  std::set<uint64_t> seen;
  std::set<std::string> names;
  for (const Plan::Unit& unit : plan.units) {
    EXPECT_FALSE(unit.parameters.empty()) << unit.name;
    EXPECT_TRUE(names.insert(unit.name).second) << unit.name << " is the name of two units";
    for (const Plan::Parameter& parameter : unit.parameters) {
      EXPECT_LT(parameter.index, model.parameters().size());
      EXPECT_TRUE(seen.insert(parameter.index).second) << "in two units: " << parameter.index;
      EXPECT_EQ(model.parameters()[parameter.index].dtype,
                model.parameters()[unit.parameters[0].index].dtype);
      // Non-decreasing from 0 to the last element: every element is in exactly one rank's range.
      EXPECT_EQ(parameter.bounds.size(), static_cast<size_t>(ranks) + 1);
      EXPECT_EQ(parameter.bounds.front(), 0u);
      EXPECT_EQ(parameter.bounds.back(), model.elements(parameter.index));
      EXPECT_TRUE(std::is_sorted(parameter.bounds.begin(), parameter.bounds.end()));
    }
  }
  return seen;
}

// Plans of all ranks of a world, in groups of `group`; returns the first rank's plan.
Plan plan_world(const ShardingPlugin& plugin, TestModel& model, int32_t world_size, int32_t group,
                const Givens& options) {
  Plan first;
  for (int32_t rank = 0; rank < world_size; ++rank) {
    const Answer answer = plugin.plan(model, rank_of(rank, world_size), options, group);
    EXPECT_EQ(answer.status, DB_OK) << answer.message;
    EXPECT_EQ(answer.plan.group, rank / group);
    if (rank == 0) first = answer.plan;
    EXPECT_TRUE(same_on_all_ranks(first, answer.plan)) << "rank " << rank;
    if (answer.status != DB_OK) break;
  }
  return first;
}

void expect_whole_rows(const Plan& plan, TestModel& model) {
  for (const Plan::Unit& unit : plan.units) {
    for (const Plan::Parameter& parameter : unit.parameters) {
      const uint64_t elements = model.elements(parameter.index);
      const uint64_t width = elements > 0 ? elements / model.rows(parameter.index) : 1;
      for (const uint64_t bound : parameter.bounds) EXPECT_EQ(bound % width, 0u) << unit.name;
    }
  }
}

// Every unit policy that applies to this model. The strings are the model's or literals.
std::vector<Givens> policies_for(TestModel& model) {
  std::vector<Givens> policies = {
      {},
      {number("unit_join_below", 0)},
      {number("unit_join_below", 500), text("param_dtype", "bf16")},
      {text("units", "size")},
      {text("units", "size"), number("unit_min_parameters", 300)},
      {text("units", "types"), text("unit_types", "Net")},
  };
  if (model.modules().size() > 1) {
    const db_module& last = model.modules().back();
    policies.push_back({text("units", "types"), text("unit_types", last.type)});
    policies.push_back({text("units", "names"), text("unit_names", last.name)});
    policies.push_back({text("units", "names"), text("unit_names", "**")});
  }
  return policies;
}

// Strategies with the group sizes that are possible for a world.
std::vector<std::pair<Givens, int32_t>> strategies_for(int32_t world_size) {
  std::vector<std::pair<Givens, int32_t>> strategies = {
      {{text("strategy", "full_shard")}, world_size},
      {{text("strategy", "shard_grad_op")}, world_size}};
  for (int32_t group = 1; group <= world_size; ++group) {
    if (world_size % group != 0) continue;
    strategies.push_back({{text("strategy", "hybrid_shard"), number("group_size", group)}, group});
  }
  return strategies;
}

TEST(FsdpProperties, AnyModelWorldStrategyAndPolicy_EveryElementHasOneOwner) {
  const ShardingPlugin fsdp("fsdp");
  for (uint32_t seed = 0; seed < kModels; ++seed) {
    TestModel model;
    make_random(model, seed);
    for (const Givens& policy : policies_for(model)) {
      for (int32_t world_size = 1; world_size <= kLargestWorld; ++world_size) {
        for (auto [options, group] : strategies_for(world_size)) {
          options.insert(options.end(), policy.begin(), policy.end());
          const Plan plan = plan_world(fsdp, model, world_size, group, options);
          EXPECT_EQ(expect_sound(plan, model, group).size(), model.parameters().size());
          expect_whole_rows(plan, model);
          ASSERT_FALSE(HasFailure()) << "seed " << seed << " world " << world_size;
        }
      }
    }
  }
}

TEST(FsdpProperties, AnyIgnoredParameter_IsInNoUnitAndTheOthersAre) {
  const ShardingPlugin fsdp("fsdp");
  for (uint32_t seed = 0; seed < kModels; ++seed) {
    TestModel model;
    make_random(model, seed);
    if (model.parameters().empty()) continue;
    const size_t ignored = seed % model.parameters().size();
    const Plan plan =
        plan_world(fsdp, model, 3, 3, {text("ignore", model.parameters()[ignored].name)});
    const std::set<uint64_t> seen = expect_sound(plan, model, 3);
    EXPECT_EQ(seen.count(ignored), 0u);
    EXPECT_EQ(seen.size(), model.parameters().size() - 1);
  }
}

// Parts of a flat unit differ only by rounding and alignment.
void expect_balanced(const Plan& plan, TestModel& model, int32_t ranks) {
  for (const Plan::Unit& unit : plan.units) {
    uint64_t total = 0;
    for (const Plan::Parameter& p : unit.parameters) total += model.elements(p.index);
    for (size_t rank = 0; rank < static_cast<size_t>(ranks); ++rank) {
      uint64_t owned = 0;
      for (const Plan::Parameter& p : unit.parameters) owned += p.bounds[rank + 1] - p.bounds[rank];
      const auto equal = static_cast<double>(total) / ranks;
      const double slack = equal >= 16 ? 17 : 1;
      EXPECT_NEAR(static_cast<double>(owned), equal, slack) << unit.name << " rank " << rank;
    }
    // One rank's parts are consecutive: if it owns some of a parameter, it owns the previous one to
    // its end, or none of it.
    for (size_t i = 1; i < unit.parameters.size(); ++i) {
      const std::vector<uint64_t>& before = unit.parameters[i - 1].bounds;
      const std::vector<uint64_t>& after = unit.parameters[i].bounds;
      for (size_t rank = 0; rank < static_cast<size_t>(ranks); ++rank) {
        const bool owns = after[rank + 1] > after[rank];
        EXPECT_TRUE(!owns || before[rank + 1] == before.back()) << unit.name;
      }
    }
  }
}

TEST(DeepspeedLikeProperties, AnyModelWorldAndStage_EveryElementHasOneOwner) {
  const ShardingPlugin plugin("deepspeed_like");
  const std::vector<Givens> sizes = {
      {},
      {number("reduce_bucket_size", 1), number("stage3_param_persistence_threshold", 0)},
      {number("reduce_bucket_size", 777), number("stage3_param_persistence_threshold", 100)},
      {number("allgather_bucket_size", 50), number("stage3_prefetch_bucket_size", 1)},
  };
  for (uint32_t seed = 0; seed < kModels; ++seed) {
    TestModel model;
    make_random(model, seed);
    for (int64_t stage = 0; stage <= 3; ++stage) {
      for (int32_t world_size = 1; world_size <= kLargestWorld; ++world_size) {
        for (Givens options : sizes) {
          options.push_back(number("stage", stage));
          const Plan plan = plan_world(plugin, model, world_size, world_size, options);
          const std::set<uint64_t> seen = expect_sound(plan, model, world_size);
          for (uint64_t p = 0; p < model.parameters().size(); ++p) {
            const bool trains = model.parameters()[p].trainable != 0;
            const bool in_unit = seen.count(p) != 0;
            // Stage 3 shards large frozen parameters too.
            const bool may = stage == 3 || (stage > 0 && trains);
            const bool must = stage > 0 && trains;
            EXPECT_TRUE(in_unit ? may : !must) << p;
          }
          expect_balanced(plan, model, world_size);
          ASSERT_FALSE(HasFailure())
              << "seed " << seed << " stage " << stage << " of " << world_size;
        }
      }
    }
  }
}

}  // namespace
}  // namespace db

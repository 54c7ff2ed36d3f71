// The deepspeed_like backend: exact plans of small models, stage by stage, and the errors for wrong
// options.
#include <gtest/gtest.h>

#include "sharding_plugin.h"

namespace db {
namespace {

const ShardingPlugin& deepspeed_like() {
  static const ShardingPlugin kPlugin("deepspeed_like");
  return kPlugin;
}

// 40 x 3 + 40, 2 x 40 + 2, and one frozen parameter.
void make_net(TestModel& model) {
  model.add_linear("fc1", 3, 40);
  model.add_linear("fc2", 40, 2);
  model.add_parameter(0, "mean", {64}, DB_F32, false);
}

Plan plan(const Givens& options, int32_t ranks = 2) {
  TestModel model;
  make_net(model);
  const Answer answer = deepspeed_like().plan(model, rank_of(0, ranks), options);
  EXPECT_EQ(answer.status, DB_OK) << answer.message;
  EXPECT_EQ(answer.plan.group, 0);
  return answer.plan;
}

std::string rendered(const Givens& options, int32_t ranks = 2) {
  TestModel model;
  make_net(model);
  return render(plan(options, ranks), model);
}

std::string refusal_of(const Givens& options) {
  TestModel model;
  make_net(model);
  return deepspeed_like().refusal(model, rank_of(0, 2), options);
}

TEST(DeepspeedLike_Stage0_Replicates, HostCutsUnlessTold) {
  EXPECT_EQ(rendered({number("stage", 0)}), "");
  EXPECT_EQ(plan({number("stage", 0)}).reduce_bytes, 0u);
  EXPECT_EQ(plan({number("stage", 0), number("reduce_bucket_size", 1000)}).reduce_bytes, 4000u);
  EXPECT_EQ(plan({number("stage", 0), number("reduce_bucket_size", INT64_MAX)}).reduce_bytes,
            UINT64_MAX);
}

TEST(DeepspeedLike_Stages1And2_AreFlatBuckets, InReverseOrderWithoutTheFrozen) {
  // 242 elements: rank 1 starts at a multiple of 16 in the parameter that contains element 121.
  EXPECT_EQ(rendered({}),
            "bucket 0 always shard: fc2.bias [0 2 2], fc2.weight [0 80 80], fc1.bias [0 32 40], "
            "fc1.weight [0 0 120]\n");
  EXPECT_EQ(rendered({number("stage", 1), number("reduce_bucket_size", 125)}),
            "bucket 0 always whole: fc2.bias [0 2 2], fc2.weight [0 48 80], fc1.bias [0 0 40]\n"
            "bucket 1 always whole: fc1.weight [0 48 120]\n");
  EXPECT_EQ(rendered({number("stage", 2), number("allgather_bucket_size", 1)}, 3),
            "bucket 0 always shard: fc2.bias [0 0 1 2]\n"
            "bucket 1 always shard: fc2.weight [0 16 48 80]\n"
            "bucket 2 always shard: fc1.bias [0 13 26 40]\n"
            "bucket 3 always shard: fc1.weight [0 32 80 120]\n");
  EXPECT_EQ(plan({}).prefetch, 0);
  EXPECT_EQ(plan({}).overlap, -1);
}

TEST(DeepspeedLike_Stage3_IsModules, AndSmallParametersPersist) {
  EXPECT_EQ(rendered({number("stage", 3), number("stage3_param_persistence_threshold", 0)}),
            "fc1 use shard: fc1.weight [0 80 120], fc1.bias [0 0 40]\n"
            "fc2 use shard: fc2.weight [0 32 80], fc2.bias [0 0 2]\n"
            "(root) use shard: mean [0 32 64]\n");
  // Frozen and small: replicated.
  EXPECT_EQ(rendered({number("stage", 3), number("stage3_param_persistence_threshold", 80)}),
            "fc1 use shard: fc1.weight [0 48 120]\n"
            "fc2 use shard: fc2.weight [0 32 80]\n"
            "persistent 0 always shard: fc2.bias [0 2 2], fc1.bias [0 16 40]\n");
  EXPECT_EQ(rendered({number("stage", 3)}),
            "persistent 0 always shard: fc2.bias [0 2 2], fc2.weight [0 80 80], fc1.bias [0 32 "
            "40], fc1.weight [0 0 120]\n");
}

TEST(DeepspeedLike_Stage3_Prefetch, CountsUnitsOfAverageSize) {
  const auto prefetch = [](int64_t elements) {
    return plan({number("stage", 3), number("stage3_param_persistence_threshold", 0),
                 number("stage3_prefetch_bucket_size", elements)})
        .prefetch;
  };
  // 160 + 82 + 64: 102 on average.
  EXPECT_EQ(prefetch(0), 0);
  EXPECT_EQ(prefetch(1), 1);
  EXPECT_EQ(prefetch(203), 1);
  EXPECT_EQ(prefetch(204), 2);
  EXPECT_EQ(prefetch(INT64_MAX), 3);
  EXPECT_EQ(plan({number("stage", 3)}).prefetch, 0);  // nothing is gathered for use
}

TEST(DeepspeedLike_OtherOptions_ReachThePlan, AsNumbers) {
  EXPECT_EQ(plan({number("stage", 3), number("stage3_max_live_parameters", 500)}).live_elements,
            500u);
  EXPECT_EQ(plan({text("overlap_comm", "true")}).overlap, 1);
  EXPECT_EQ(plan({text("overlap_comm", "false")}).overlap, 0);
  EXPECT_EQ(plan({text("communication_data_type", "bfp16")}).units[0].reduce, DB_BF16);
  EXPECT_EQ(plan({}).units[0].reduce, 0);
  EXPECT_EQ(plan({}).units[0].compute, 0);
}

TEST(DeepspeedLike_MixedTypes_AreUnitsOfTheirOwn, NamedByType) {
  TestModel model;
  model.add_parameter(0, "a", {32});
  model.add_parameter(0, "b", {32}, DB_F64);
  model.add_parameter(0, "c", {32});
  const Answer answer = deepspeed_like().plan(model, rank_of(0, 2));
  EXPECT_EQ(render(answer.plan, model),
            "bucket 0 (f32) always shard: c [0 32 32], a [0 0 32]\n"
            "bucket 0 (f64) always shard: b [0 16 32]\n");
}

TEST(DeepspeedLike_WrongOptions_Message, NamesTheValidOnes) {
  EXPECT_EQ(refusal_of({number("stage", 4)}),
            "option 'stage' is 4; valid: 0 (nothing is sharded), 1 (optimizer state), 2 "
            "(gradients too), 3 (parameters too)");
  EXPECT_EQ(refusal_of({number("stage", -1)}).find("option 'stage' is -1; valid: 0 "), 0u);
  EXPECT_EQ(refusal_of({text("overlap_comm", "yes")}),
            "option 'overlap_comm' is 'yes'; valid: auto, true, false");
  EXPECT_EQ(refusal_of({flag("overlap_comm", true)}),
            "option 'overlap_comm' must be a string, but is true or false");
  for (const char* key : {"reduce_bucket_size", "allgather_bucket_size"})
    EXPECT_EQ(refusal_of({number(key, 0)}),
              "option '" + std::string(key) + "' is 0; valid: 1 or more");
  for (const char* key : {"stage3_prefetch_bucket_size", "stage3_max_live_parameters",
                          "stage3_param_persistence_threshold"})
    EXPECT_EQ(refusal_of({number(key, -1)}),
              "option '" + std::string(key) + "' is -1; valid: 0 or more");
  EXPECT_EQ(refusal_of({text("communication_data_type", "int8")}),
            "option 'communication_data_type' is 'int8'; valid: bf16, f16 (or fp16), f32 (or "
            "fp32), f64 (or fp64), or empty for the parameter's own type");
  EXPECT_EQ(refusal_of({number("stage", 0), text("communication_data_type", "bf16")}),
            "option 'communication_data_type' has no effect with stage = 0; remove it, or set "
            "stage to 1, 2 or 3");
}

TEST(DeepspeedLike_Offload, IsInThePlan) {
  using Offload = Plan::Offload;
  EXPECT_EQ(plan({}).optimizer, Offload());
  EXPECT_EQ(plan({}).parameters, Offload());
  const Plan disk =
      plan({number("stage", 3), text("offload_optimizer.device", "nvme"),
            text("offload_optimizer.nvme_path", "/scratch"), text("offload_param.device", "cpu"),
            flag("offload_param.pin_memory", true)});
  EXPECT_EQ(disk.optimizer, (Offload{DB_PLACE_DISK, false, "/scratch", 4}));
  EXPECT_EQ(disk.parameters, (Offload{DB_PLACE_HOST, true, "", 5}));
  const Plan other =
      plan({number("stage", 3), text("offload_param.device", "nvme"),
            text("offload_param.nvme_path", "/scratch"), number("offload_param.buffer_count", 2)});
  EXPECT_EQ(other.optimizer, Offload());
  EXPECT_EQ(other.parameters, (Offload{DB_PLACE_DISK, false, "/scratch", 2}));
}

TEST(DeepspeedLike_Offload, RefusesWhatCannotBe) {
  EXPECT_EQ(refusal_of({text("offload_optimizer.device", "disk")}),
            "option 'offload_optimizer.device' is 'disk'; valid: none, cpu, nvme");
  EXPECT_EQ(refusal_of({text("offload_optimizer.device", "nvme")}),
            "offload_optimizer.device = \"nvme\" needs option 'offload_optimizer.nvme_path': a "
            "folder on the disk to offload to");
  EXPECT_EQ(refusal_of({text("offload_optimizer.nvme_path", "/scratch")}),
            "option 'offload_optimizer.nvme_path' is for offload_optimizer.device = \"nvme\", but "
            "that is 'none'");
  EXPECT_EQ(refusal_of({text("offload_optimizer.device", "cpu"),
                        number("offload_optimizer.buffer_count", 2)}),
            "option 'offload_optimizer.buffer_count' is for offload_optimizer.device = \"nvme\", "
            "but that is 'cpu'");
  EXPECT_EQ(refusal_of({number("stage", 3), text("offload_param.device", "nvme"),
                        text("offload_param.nvme_path", "/scratch"),
                        flag("offload_param.pin_memory", true)}),
            "option 'offload_param.pin_memory' is for offload_param.device = \"cpu\", but that is "
            "'nvme'");
  EXPECT_EQ(refusal_of({number("offload_optimizer.buffer_count", 0)}),
            "option 'offload_optimizer.buffer_count' is 0; valid: 1 to 1024");
  EXPECT_EQ(refusal_of({number("stage", 0), text("offload_optimizer.device", "cpu")}),
            "option 'offload_optimizer.device' needs stage 1 or more, but stage is 0");
  EXPECT_EQ(refusal_of({text("offload_param.device", "cpu")}),
            "option 'offload_param.device' needs stage 3, but stage is 2");
}

}  // namespace
}  // namespace db

// The fsdp backend: exact plans of small models, option by option, and errors for wrong options.
#include <gtest/gtest.h>

#include "sharding_plugin.h"

namespace db {
namespace {

const ShardingPlugin& fsdp() {
  static const ShardingPlugin kPlugin("fsdp");
  return kPlugin;
}

// Two linear layers with 7 and 3 rows.
void make_mlp(TestModel& model) {
  model.add_linear("fc1", 10, 7);
  model.add_linear("fc2", 7, 3);
}

// An embedding, two blocks of a norm and two linear layers, a head; 4,000 to 40 elements each.
void make_transformer(TestModel& model) {
  model.add_parameter(model.add_module("embed", "torch::nn::EmbeddingImpl"), "weight", {100, 8});
  const size_t list = model.add_module("blocks", "torch::nn::ModuleListImpl");
  for (const std::string block : {"blocks.0", "blocks.1"}) {
    const auto parent =
        static_cast<int64_t>(model.add_module(block, "gpt::BlockImpl", static_cast<int64_t>(list)));
    const size_t norm = model.add_module(block + ".norm", "torch::nn::LayerNormImpl", parent);
    model.add_parameter(norm, "weight", {8});
    model.add_linear(block + ".up", 8, 32, parent);
    model.add_linear(block + ".down", 32, 8, parent);
  }
  model.add_linear("head", 8, 100);
}

std::string names(const Plan& plan) {
  std::string result;
  for (const Plan::Unit& unit : plan.units) {
    result += (result.empty() ? "" : "; ") + unit.name + "=";
    for (const Plan::Parameter& parameter : unit.parameters)
      result += (result.back() == '=' ? "" : ",") + std::to_string(parameter.index);
  }
  return result;
}

std::string fsdp_refusal(const Givens& options, const Where& where = rank_of(0, 4)) {
  TestModel model;
  make_transformer(model);
  return fsdp().refusal(model, where, options);
}

std::string units(const Givens& options) {
  TestModel model;
  make_transformer(model);
  const Answer answer = fsdp().plan(model, rank_of(0, 2), options);
  EXPECT_EQ(answer.status, DB_OK) << answer.message;
  return names(answer.plan);
}

TEST(Fsdp_FullShard_CutsRows, AsTorchChunk) {
  TestModel model;
  make_mlp(model);
  const Answer two = fsdp().plan(model, rank_of(1, 2), {number("unit_join_below", 0)});
  EXPECT_EQ(render(two.plan, model),
            "fc1 use shard: fc1.weight [0 40 70], fc1.bias [0 4 7]\n"
            "fc2 use shard: fc2.weight [0 14 21], fc2.bias [0 2 3]\n");
  EXPECT_EQ(two.plan.group, 0);
  EXPECT_EQ(two.plan.prefetch, 1);
  EXPECT_EQ(two.plan.live_elements, 0u);
  EXPECT_EQ(two.plan.reduce_bytes, 0u);
  EXPECT_EQ(two.plan.overlap, -1);
  const Answer five = fsdp().plan(model, rank_of(4, 5), {number("unit_join_below", 0)});
  EXPECT_EQ(render(five.plan, model),
            "fc1 use shard: fc1.weight [0 20 40 60 70 70], fc1.bias [0 2 4 6 7 7]\n"
            "fc2 use shard: fc2.weight [0 7 14 21 21 21], fc2.bias [0 1 2 3 3 3]\n");
}

TEST(Fsdp_ScalarsAndEmptyParameters_HaveBounds, ScalarsAreRankZeros) {
  TestModel model;
  model.add_parameter(0, "scale", {});
  model.add_parameter(0, "none", {0, 3});
  model.add_parameter(0, "flat", {3, 0});
  const Answer answer = fsdp().plan(model, rank_of(0, 3));
  EXPECT_EQ(render(answer.plan, model),
            "(root) use shard: scale [0 1 1 1], none [0 0 0 0], flat [0 0 0 0]\n");
}

TEST(Fsdp_Strategies_DecideHowLong, AUnitIsKept) {
  TestModel model;
  make_mlp(model);
  const auto keep = [&](const Givens& options) {
    const Answer answer = fsdp().plan(model, rank_of(0, 2), options);
    EXPECT_EQ(answer.status, DB_OK) << answer.message;
    EXPECT_EQ(answer.plan.units.size(), 1u);
    EXPECT_EQ(answer.plan.units[0].gradients, DB_GRADIENTS_SHARD);
    return answer.plan.units[0].keep;
  };
  EXPECT_EQ(keep({text("strategy", "full_shard")}), DB_KEEP_USE);
  EXPECT_EQ(keep({flag("reshard_after_forward", false)}), DB_KEEP_STEP);
  EXPECT_EQ(keep({text("strategy", "shard_grad_op")}), DB_KEEP_STEP);
  EXPECT_EQ(keep({text("strategy", "shard_grad_op"), flag("reshard_after_forward", true)}),
            DB_KEEP_STEP);
  EXPECT_EQ(keep({text("strategy", "hybrid_shard")}), DB_KEEP_USE);
  EXPECT_EQ(keep({text("strategy", "hybrid_shard"), flag("reshard_after_forward", false)}),
            DB_KEEP_STEP);
  const Answer none = fsdp().plan(model, rank_of(0, 2), {text("strategy", "no_shard")});
  EXPECT_EQ(none.status, DB_OK);
  EXPECT_TRUE(none.plan.units.empty());
}

TEST(Fsdp_HybridShard_Groups, AreMachinesOrOfTheSizeGiven) {
  TestModel model;
  make_mlp(model);
  const Where second = {.rank = 5, .size = 6, .local_rank = 2, .local_size = 3};
  const Answer machine = fsdp().plan(model, second, {text("strategy", "hybrid_shard")}, 3);
  EXPECT_EQ(machine.plan.group, 1);
  EXPECT_EQ(render(machine.plan, model),
            "fc1..fc2 use shard: fc1.weight [0 30 60 70], fc1.bias [0 3 6 7], fc2.weight [0 7 14 "
            "21], fc2.bias [0 1 2 3]\n");
  const Answer pair =
      fsdp().plan(model, second, {text("strategy", "hybrid_shard"), number("group_size", 2)}, 2);
  EXPECT_EQ(pair.plan.group, 2);
  EXPECT_EQ(pair.plan.units[0].parameters[0].bounds, (std::vector<uint64_t>{0, 40, 70}));
}

TEST(Fsdp_Types_AreTheUnits, OfFloatingParameters) {
  TestModel model;
  model.add_parameter(0, "w", {4});
  model.add_parameter(0, "q", {4}, DB_I8, false);
  model.add_parameter(0, "d", {4}, DB_F64);
  model.add_parameter(0, "v", {4});
  const Answer answer = fsdp().plan(
      model, rank_of(0, 2),
      {text("param_dtype", "bf16"), text("reduce_dtype", "fp32"), text("output_dtype", "f16")});
  EXPECT_EQ(names(answer.plan), "(root) (f32)=0,3; (root) (i8)=1; (root) (f64)=2");
  for (const size_t floating : {0, 2}) {
    EXPECT_EQ(answer.plan.units[floating].compute, DB_BF16);
    EXPECT_EQ(answer.plan.units[floating].reduce, DB_F32);
    EXPECT_EQ(answer.plan.units[floating].output, DB_F16);
  }
  EXPECT_EQ(answer.plan.units[1].compute, 0);
  EXPECT_EQ(answer.plan.units[1].reduce, 0);
  EXPECT_EQ(answer.plan.units[1].output, 0);
}

TEST(Fsdp_UnitsByModule_SmallOnes, JoinTheNext) {
  // norm has 8 elements, up 288, down 264, embed 800, head 900.
  EXPECT_EQ(units({number("unit_join_below", 0)}),
            "embed=0; blocks.0.norm=1; blocks.0.up=2,3; blocks.0.down=4,5; blocks.1.norm=6; "
            "blocks.1.up=7,8; blocks.1.down=9,10; head=11,12");
  EXPECT_EQ(units({number("unit_join_below", 100)}),
            "embed=0; blocks.0.norm..blocks.0.up=1,2,3; blocks.0.down=4,5; "
            "blocks.1.norm..blocks.1.up=6,7,8; blocks.1.down=9,10; head=11,12");
  EXPECT_EQ(units({number("unit_join_below", 901), text("ignore", "embed")}),
            "blocks.0.norm..head=1,2,3,4,5,6,7,8,9,10,11,12");
  EXPECT_EQ(units({}), "embed..head=0,1,2,3,4,5,6,7,8,9,10,11,12");
}

TEST(Fsdp_UnitsBySize_AreAtLeastThat, InOrderOfRegistration) {
  EXPECT_EQ(units({text("units", "size"), number("unit_min_parameters", 550)}),
            "embed=0; blocks.0.norm..blocks.0.down=1,2,3,4,5; "
            "blocks.1.norm..blocks.1.down=6,7,8,9,10; head=11,12");
  EXPECT_EQ(units({text("units", "size"), number("unit_min_parameters", 1000)}),
            "embed..blocks.0.up=0,1,2,3; blocks.0.down..head=4,5,6,7,8,9,10,11,12");
  EXPECT_EQ(units({text("units", "size")}), "embed..head=0,1,2,3,4,5,6,7,8,9,10,11,12");
}

TEST(Fsdp_UnitsByType_Names, AreFullOrLastWithOrWithoutImpl) {
  const std::string blocks = "(root)=0,11,12; blocks.0=1,2,3,4,5; blocks.1=6,7,8,9,10";
  for (const char* type : {"Block", "BlockImpl", "gpt::BlockImpl", "gpt::Block"})
    EXPECT_EQ(units({text("units", "types"), text("unit_types", type)}), blocks) << type;
  EXPECT_EQ(units({text("units", "types"), text("unit_types", "Block, Embedding,LayerNorm")}),
            "embed=0; blocks.0.norm=1; blocks.0=2,3,4,5; blocks.1.norm=6; blocks.1=7,8,9,10; "
            "(root)=11,12");
  EXPECT_EQ(units({text("units", "types"), text("unit_types", "Net")}),
            "(root)=0,1,2,3,4,5,6,7,8,9,10,11,12");
}

TEST(Fsdp_UnitsByName_InnerOnes, WinOverOuterOnes) {
  EXPECT_EQ(units({text("units", "names"), text("unit_names", "blocks.*")}),
            "(root)=0,11,12; blocks.0=1,2,3,4,5; blocks.1=6,7,8,9,10");
  EXPECT_EQ(units({text("units", "names"), text("unit_names", "blocks, blocks.1.up,head,embed")}),
            "embed=0; blocks=1,2,3,4,5,6,9,10; blocks.1.up=7,8; head=11,12");
}

TEST(Fsdp_Ignore_NamesAndPatterns, LeaveParametersOut) {
  const Givens base = {text("units", "names"), text("unit_names", "blocks")};
  const auto with = [&](const char* ignore) {
    Givens options = base;
    options.push_back(text("ignore", ignore));
    return units(options);
  };
  EXPECT_EQ(with("embed, head.bias"), "blocks=1,2,3,4,5,6,7,8,9,10; (root)=11");
  EXPECT_EQ(with("blocks.0"), "(root)=0,11,12; blocks=6,7,8,9,10");
  EXPECT_EQ(with("**.bias"), "(root)=0,11; blocks=1,2,4,6,7,9");
  EXPECT_EQ(with("blocks.*.norm"), "(root)=0,11,12; blocks=2,3,4,5,7,8,9,10");
  EXPECT_EQ(with("**"), "");
}

TEST(Fsdp_WrongStrategy_Message, NamesTheValidOnes) {
  EXPECT_EQ(fsdp_refusal({text("strategy", "fullshard")}),
            "option 'strategy' is 'fullshard'; valid: full_shard, shard_grad_op, hybrid_shard, "
            "no_shard");
  EXPECT_EQ(fsdp_refusal({text("units", "layers")}),
            "option 'units' is 'layers'; valid: modules, types, size, names");
}

TEST(Fsdp_WrongGroup_Message, NamesTheDivisors) {
  const Given hybrid = text("strategy", "hybrid_shard");
  EXPECT_EQ(fsdp_refusal({hybrid, number("group_size", 3)}, rank_of(0, 6 + 2)),
            "option 'group_size' is 3, which does not divide the number of ranks, 8; valid: 1, 2, "
            "4 and 8, or 0 for the ranks of one machine");
  EXPECT_EQ(fsdp_refusal({hybrid, number("group_size", -1)}, rank_of(0, 1)),
            "option 'group_size' is -1, which does not divide the number of ranks, 1; valid: 1, or "
            "0 for the ranks of one machine");
  EXPECT_EQ(fsdp_refusal({hybrid, number("group_size", INT64_MAX)}, rank_of(0, 2)),
            "option 'group_size' is 9223372036854775807, which does not divide the number of "
            "ranks, 2; valid: 1 and 2, or 0 for the ranks of one machine");
  EXPECT_EQ(fsdp_refusal({number("group_size", 2)}),
            "option 'group_size' is for strategy = \"hybrid_shard\", but strategy is 'full_shard'");
  EXPECT_EQ(fsdp_refusal({hybrid}, {.rank = 0, .size = 4, .local_rank = 0, .local_size = 3}),
            "hybrid_shard shards among the ranks of a machine, but this machine has 3 ranks, "
            "which do not divide the job's 4 ranks; set option 'group_size' to a divisor of the "
            "number of ranks: 1, 2 and 4");
  EXPECT_EQ(
      fsdp_refusal({hybrid}, {.rank = 2, .size = 4, .local_rank = 1, .local_size = 2}),
      "hybrid_shard shards among the ranks of a machine, which must be consecutive: "
      "rank 2 is local rank 1 of 2 here; set option 'group_size' to a divisor of the number of "
      "ranks: 1, 2 and 4");
}

TEST(Fsdp_WrongNumbersAndTypes_Message, NamesTheValidOnes) {
  EXPECT_EQ(fsdp_refusal({number("prefetch", -1)}),
            "option 'prefetch' is -1; valid: 0 to 2147483647");
  EXPECT_EQ(fsdp_refusal({number("prefetch", int64_t{1} << 31)}),
            "option 'prefetch' is 2147483648; valid: 0 to 2147483647");
  EXPECT_EQ(fsdp_refusal({number("unit_join_below", -5)}),
            "option 'unit_join_below' is -5; valid: 0 or more");
  EXPECT_EQ(fsdp_refusal({text("units", "size"), number("unit_min_parameters", 0)}),
            "option 'unit_min_parameters' is 0; valid: 1 or more");
  for (const char* key : {"param_dtype", "reduce_dtype", "output_dtype"}) {
    EXPECT_EQ(fsdp_refusal({text(key, "float8")}),
              "option '" + std::string(key) +
                  "' is 'float8'; valid: bf16, f16 (or fp16), f32 (or fp32), f64 (or fp64), or "
                  "empty for the parameter's own type");
    EXPECT_EQ(
        fsdp_refusal({text(key, "bf16"), text("strategy", "no_shard")}),
        "option '" + std::string(key) + "' has no effect with strategy = \"no_shard\"; remove it");
  }
  EXPECT_EQ(fsdp_refusal({text("prefetch", "two")}),
            "option 'prefetch' must be an integer, but is a string");
}

TEST(Fsdp_OptionOfAnotherPolicy_IsAnError, NotIgnored) {
  EXPECT_EQ(fsdp_refusal({text("unit_types", "Block")}),
            "option 'unit_types' is for units = \"types\", but units is 'modules'");
  EXPECT_EQ(fsdp_refusal({text("unit_names", "head"), text("units", "types")}),
            "option 'unit_names' is for units = \"names\", but units is 'types'");
  EXPECT_EQ(fsdp_refusal({number("unit_min_parameters", 1000000)}),
            "option 'unit_min_parameters' is for units = \"size\", but units is 'modules'");
  EXPECT_EQ(fsdp_refusal({number("unit_join_below", 1), text("units", "size")}),
            "option 'unit_join_below' is for units = \"modules\", but units is 'size'");
  EXPECT_EQ(fsdp_refusal({text("units", "types")}),
            "units = \"types\" needs option 'unit_types': the module types that form units");
  EXPECT_EQ(fsdp_refusal({text("units", "names"), text("unit_names", " , ")}),
            "units = \"names\" needs option 'unit_names': the modules that form units");
}

TEST(Fsdp_NameThatMatchesNothing_Message, ListsSomeThatExist) {
  EXPECT_EQ(fsdp_refusal({text("units", "types"), text("unit_types", "Block,Attention")}),
            "option 'unit_types': no module of the model is a 'Attention'; its types: NetImpl, "
            "torch::nn::EmbeddingImpl, torch::nn::ModuleListImpl, gpt::BlockImpl, "
            "torch::nn::LayerNormImpl, torch::nn::LinearImpl");
  EXPECT_EQ(fsdp_refusal({text("units", "names"), text("unit_names", "blocks.0,layers.*")}),
            "option 'unit_names': no module of the model matches 'layers.*'; its modules: embed, "
            "blocks, blocks.0, blocks.0.norm, blocks.0.up, blocks.0.down and 5 more");
  EXPECT_EQ(fsdp_refusal({text("ignore", "head,tail")}),
            "option 'ignore': no module or parameter of the model matches 'tail'; its modules: "
            "embed, blocks, blocks.0, blocks.0.norm, blocks.0.up, blocks.0.down and 5 more");
}

TEST(Fsdp_TwoPatternsForAModule_Message, NamesAllThree) {
  EXPECT_EQ(fsdp_refusal({text("units", "names"), text("unit_names", "head,blocks.*,blocks.1")}),
            "option 'unit_names': units overlap: 'blocks.*' and 'blocks.1' both match the module "
            "'blocks.1'");
}

TEST(Fsdp_Offload, IsInThePlanForAllThree) {
  using Offload = Plan::Offload;
  TestModel model;
  model.add_linear("fc1", 3, 40);
  const auto plan_with = [&](const Givens& options) {
    const Answer answer = fsdp().plan(model, rank_of(0, 2), options);
    EXPECT_EQ(answer.status, DB_OK) << answer.message;
    return answer.plan;
  };
  EXPECT_EQ(plan_with({}).optimizer, Offload());
  const Plan disk =
      plan_with({text("offload.device", "nvme"), text("offload.nvme_path", "/scratch")});
  EXPECT_EQ(disk.optimizer, (Offload{DB_PLACE_DISK, false, "/scratch", 4}));
  EXPECT_EQ(disk.parameters, disk.optimizer);
  EXPECT_EQ(fsdp().refusal(model, rank_of(0, 2), {text("offload.device", "nvme")}),
            "offload.device = \"nvme\" needs option 'offload.nvme_path': a folder on the disk to "
            "offload to");
  EXPECT_EQ(fsdp().refusal(model, rank_of(0, 2),
                           {text("strategy", "no_shard"), text("offload.device", "cpu")}),
            "option 'offload.device' has no effect with strategy = \"no_shard\"; remove "
            "it");
}

}  // namespace
}  // namespace db

// What both plugins share: their tables, the communicator that forwards everything, and refusals of
// create and plan that do not depend on the options.
#include <gtest/gtest.h>

#include <cstring>

#include "sharding_plugin.h"

namespace db {
namespace {

class Sharding : public ::testing::TestWithParam<const char*> {
 protected:
  db_communicator* create(FakeBase& base, const Where& where) {
    db_communicator* result = nullptr;
    std::string message;
    EXPECT_EQ(plugin.create(where, {}, base.handle(), &result, &message), DB_OK) << message;
    return result;
  }
  const ShardingPlugin plugin{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Plugins, Sharding, ::testing::Values("fsdp", "deepspeed_like"),
                         [](const auto& plugin) { return std::string(plugin.param); });

TEST_P(Sharding, Table_SaysWhatItIs_AndHasTheExtension) {
  const DistributedBackend& table = plugin.table();
  EXPECT_STREQ(table.name, GetParam());
  EXPECT_EQ(table.capabilities,
            static_cast<uint64_t>(DB_CAP_NEEDS_BASE | DB_CAP_ABORT | DB_CAP_SPLIT |
                                  DB_CAP_HOST_MEMORY | DB_CAP_CUDA_MEMORY | DB_CAP_STREAM_ORDERED));
  ASSERT_NE(table.get_extension(DB_SHARDING), nullptr);
  EXPECT_EQ(table.get_extension("coupler.sharding/2"), nullptr);
  EXPECT_EQ(table.get_extension(nullptr), nullptr);
  int32_t score = 0;
  char reason[64];
  EXPECT_EQ(table.probe(nullptr, &score, reason, sizeof(reason)), DB_OK);
  EXPECT_EQ(score, 1);
  EXPECT_STREQ(reason, "runs on any transport");
  uint64_t count = 0;
  const db_option* const* options = table.default_options(&count);
  for (uint64_t i = 0; i < count; ++i) {
    EXPECT_NE(options[i]->description, nullptr) << options[i]->key;
    EXPECT_EQ(strchr(options[i]->description, '|'), nullptr) << "would break the table in docs/";
  }
}

TEST_P(Sharding, Communicator_EveryFunction_IsTheBases) {
  FakeBase base(1, 3);
  db_communicator* mine = create(base, rank_of(1, 3));
  EXPECT_EQ(mine->rank, 1);
  EXPECT_EQ(mine->size, 3);
  int32_t score = 0;
  db_request* request = nullptr;
  EXPECT_EQ(mine->functions->supports(mine, nullptr, &score), DB_OK);
  EXPECT_EQ(score, 7);
  EXPECT_EQ(mine->functions->submit(mine, nullptr, &request, nullptr), DB_OK);
  EXPECT_EQ(mine->functions->async_error(mine, nullptr), DB_ERR_PEER_LOST);
  EXPECT_EQ(mine->functions->abort(mine), DB_OK);
  EXPECT_EQ(mine->functions->test, base.handle()->functions->test);
  EXPECT_EQ(mine->functions->get_extension(mine, "any"), nullptr);
  mine->functions->destroy(mine);
  EXPECT_EQ(base.calls(), (std::vector<std::string>{"supports", "submit", "async_error", "abort"}));
}

TEST_P(Sharding, Split_Result_IsWrappedAndOwnsItsBase) {
  FakeBase base(0, 2);
  db_communicator* mine = create(base, rank_of(0, 2));
  db_communicator* part = nullptr;
  ASSERT_EQ(mine->functions->split(mine, 0, 1, &part, nullptr), DB_OK);
  mine->functions->destroy(mine);  // a part may outlive its parent
  ASSERT_NE(part, nullptr);
  EXPECT_EQ(part->rank, 1);
  TestModel model;
  model.add_linear("fc", 4, 4);
  const db_plan* plan = nullptr;
  EXPECT_EQ(plugin.sharding().plan(part, model.describe(), &plan, nullptr), DB_OK);
  plugin.sharding().release(plan);
  part->functions->destroy(part);
  EXPECT_EQ(base.calls(), (std::vector<std::string>{"split", "destroy"}));
}

TEST_P(Sharding, Split_NegativeColor_GetsNone) {
  FakeBase base;
  db_communicator* mine = create(base, {});
  db_communicator* part = mine;
  EXPECT_EQ(mine->functions->split(mine, -1, 0, &part, nullptr), DB_OK);
  EXPECT_EQ(part, nullptr);
  mine->functions->destroy(mine);
}

TEST_P(Sharding, Split_BaseWithoutIt_IsNotOffered) {
  FakeBase base(0, 1, false);
  db_communicator* mine = create(base, {});
  EXPECT_EQ(mine->functions->split, nullptr);
  mine->functions->destroy(mine);
}

TEST_P(Sharding, Create_WrongParameters_AreNamed) {
  std::string message;
  db_communicator* result = nullptr;
  EXPECT_EQ(plugin.create({}, {}, nullptr, &result, &message), DB_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(message, std::string(GetParam()) +
                         " needs a base communicator of role \"world\" with the same rank and size "
                         "as its own");
  FakeBase base(0, 2);
  EXPECT_EQ(plugin.create(rank_of(0, 3), {}, base.handle(), &result, &message),
            DB_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(plugin.create(rank_of(0, 0), {}, base.handle(), &result, &message),
            DB_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(message, "create: rank 0 of 0 is out of range; ranks go from 0 to size - 1");
  EXPECT_EQ(plugin.table().create(nullptr, &result, nullptr), DB_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(plugin.create(rank_of(0, 2), {text("stradegy", "")}, base.handle(), &result, &message),
            DB_ERR_UNKNOWN_OPTION);
  EXPECT_EQ(message.rfind("unknown option 'stradegy', did you mean", 0), 0u) << message;
  EXPECT_EQ(result, nullptr);
}

TEST_P(Sharding, Plan_OfAnothersCommunicator_IsRefused) {
  FakeBase base;
  TestModel model;
  const db_plan* plan = nullptr;
  char buffer[128];
  db_error error = {sizeof(error), 0, 0, 0, 0, buffer, sizeof(buffer)};
  EXPECT_EQ(plugin.sharding().plan(base.handle(), model.describe(), &plan, &error),
            DB_ERR_INVALID_ARGUMENT);
  EXPECT_STREQ(buffer, "plan: the communicator belongs to another backend");
  EXPECT_EQ(plugin.sharding().plan(nullptr, model.describe(), &plan, nullptr),
            DB_ERR_INVALID_ARGUMENT);
}

TEST_P(Sharding, Plan_ModelWithoutParameters_HasNoUnits) {
  TestModel model;
  const Answer answer = plugin.plan(model, rank_of(0, 2));
  EXPECT_EQ(answer.status, DB_OK) << answer.message;
  EXPECT_TRUE(answer.plan.units.empty());
}

TEST_P(Sharding, Plan_ContradictoryModel_IsNamed) {
  const auto refusal = [&](const auto& spoil) {
    TestModel model;
    model.add_linear("fc", 4, 4);
    spoil(model);
    return plugin.refusal(model, rank_of(0, 2), {});
  };
  EXPECT_EQ(refusal([](TestModel& m) { m.modules()[1].parent = 1; }),
            "model description: module number 1 does not come after its parent");
  EXPECT_EQ(refusal([](TestModel& m) { m.parameters()[1].module = 2; }),
            "model description: parameter number 1 belongs to a module that does not exist");
  EXPECT_EQ(refusal([](TestModel& m) { m.parameters()[0].dtype = 99; }),
            "model description: parameter number 0 has an unknown type");
  EXPECT_EQ(refusal([](TestModel& m) { m.parameters()[0].name = nullptr; }),
            "model description: parameter number 0 is NULL, lacks a name or sizes, or has "
            "too small a struct_size");
  EXPECT_EQ(refusal([](TestModel& m) { m.modules()[0].struct_size = 8; }),
            "model description: module number 0 is NULL, lacks a name or type, or has "
            "too small a struct_size");
  EXPECT_EQ(refusal([](TestModel& m) {
              m.add_parameter(1, "huge", {uint64_t{1} << 40, 1u << 30});
            }),
            "model description: parameter number 2 has more elements than 64 bits can count");
}

}  // namespace
}  // namespace db

// Who meets whom in a group's communicator, on the test double.
#include "groups/groups.h"

#include <gtest/gtest.h>

#include <mutex>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "base/span.h"
#include "core/comm/ranks.h"

namespace coupler::groups {
namespace {

using testing::all_reduce;
using testing::expect_no_error;
using testing::run_ranks;

constexpr Mesh::Sizes kSizes = {2, 2, 1, 1, 1, 2};

// The library's Communicator is shared by its owner; here the test's function owns it.
std::shared_ptr<comm::Communicator> borrowed(comm::Communicator& world) {
  return {std::shared_ptr<void>(), &world};
}

float sum_of_ranks(comm::Communicator& group, int rank) {
  std::vector<float> values = {static_cast<float>(rank)};
  group.run(all_reduce(values));
  return values[0];
}

TEST(Groups, EveryGroup_HasTheRanksOfTheMesh) {
  expect_no_error(run_ranks(8, [](comm::Communicator& world) {
    const Mesh mesh(kSizes, world.rank());
    Groups groups(mesh, borrowed(world));
    for (const Dimensions dimensions :
         {kPipeline, kData, kTensor, kData | kTensor, kPipeline | kData, kSamples, kShard}) {
      const auto group = groups.get(dimensions);
      const std::vector<int> expected = ranks_of_group(mesh, dimensions);
      EXPECT_EQ(group->world_ranks(), expected) << name_of(dimensions);
      EXPECT_EQ(group->rank(), rank_in_group(mesh, dimensions));
      EXPECT_EQ(sum_of_ranks(*group, world.rank()),
                static_cast<float>(std::accumulate(expected.begin(), expected.end(), 0)));
    }
  }));
}

TEST(Groups, TheSameRanks_ShareOneCommunicator) {
  expect_no_error(run_ranks(8, [](comm::Communicator& world) {
    Groups groups(Mesh(kSizes, world.rank()), borrowed(world));
    EXPECT_EQ(groups.get(kWorld).get(), &world);
    EXPECT_EQ(groups.get(kPipeline | kData | kTensor).get(), &world);
    EXPECT_EQ(groups.get(kData), groups.get(kSamples));
    EXPECT_NE(groups.get(kData), groups.get(kTensor));
    const auto purpose = groups.make(kGradients, "gradients");
    EXPECT_NE(purpose, groups.get(kGradients));
    EXPECT_EQ(purpose->name(), "world/gradients");
  }));
}

TEST(Groups, AllRanksAlongData_NeedNoFurtherCommunicator) {
  expect_no_error(run_ranks(2, [](comm::Communicator& world) {
    Groups groups(Mesh({1, 2, 1, 1, 1, 1}, world.rank()), borrowed(world));
    EXPECT_EQ(groups.get(kSamples).get(), &world);
    EXPECT_EQ(groups.get(kGradients).get(), &world);
    EXPECT_EQ(groups.get(kTensor)->size(), 1);
  }));
}

class GroupsOfSpans final : public SpanRecorder {
 public:
  GroupsOfSpans() { set_span_recorder(this); }
  ~GroupsOfSpans() override { set_span_recorder(nullptr); }
  void record(const SpanRecord& span) override {
    const std::lock_guard lock(mutex_);
    if (span.group != nullptr) names_.insert(span.group);
  }
  // Those since the last call.
  std::set<std::string> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(names_, {});
  }

 private:
  std::mutex mutex_;
  std::set<std::string> names_;
};

TEST(Groups, InProfiles_HaveTheNamesOfTheirDimensions) {
  GroupsOfSpans spans;
  const auto names_of = [&](Dimensions dimensions, int ranks, const Mesh::Sizes& sizes) {
    expect_no_error(run_ranks(ranks, [&](comm::Communicator& world) {
      Groups groups(Mesh(sizes, world.rank()), borrowed(world));
      sum_of_ranks(*groups.make(dimensions, "purpose"), world.rank());
    }));
    return spans.take();
  };
  EXPECT_EQ(names_of(kTensor, 4, {1, 2, 1, 1, 1, 2}), std::set<std::string>{"tensor"});
  EXPECT_EQ(names_of(kGradients, 4, {1, 2, 1, 1, 1, 2}), std::set<std::string>{"data"});
  EXPECT_EQ(names_of(kPipeline, 4, {1, 2, 1, 1, 1, 2}), std::set<std::string>{});
  // What the world's communicator is called.
  EXPECT_EQ(names_of(kGradients, 2, {1, 2, 1, 1, 1, 1}), std::set<std::string>{"world"});
}

// A dry run is one process of a mesh of several.
TEST(Groups, OfAProcessAlone_AreMadeUp) {
  expect_no_error(run_ranks(1, [](comm::Communicator& world) {
    const Mesh job({1, 2, 2, 1, 2, 4}, 3);
    const Mesh mesh = within_replica(job);
    EXPECT_EQ(describe(mesh), "context 2 x tensor 4");
    Groups groups(mesh, borrowed(world));
    EXPECT_EQ(groups.get(kSamples)->size(), 1);
    const auto tensor = groups.make(kTensor, "divided layers");
    EXPECT_EQ(tensor->size(), 4);
    EXPECT_EQ(tensor->rank(), 0);
    EXPECT_EQ(groups.get(kContext)->size(), 2);
    EXPECT_EQ(groups.get(kWorld)->size(), 8);
    EXPECT_EQ(describe(within_replica(Mesh({1, 2, 1, 2, 1, 1}, 0))), "expert 2");
  }));
}

TEST(Groups, OfAProcessAlone_AreThoseOfItsStage) {
  expect_no_error(run_ranks(1, [](comm::Communicator& world) {
    const Mesh mesh = within_replica(Mesh({4, 2, 1, 1, 1, 2}, 0), 3);
    EXPECT_EQ(describe(mesh), "pipeline 4 x tensor 2");
    EXPECT_EQ(mesh.rank("pipeline"), 3);
    EXPECT_EQ(mesh.rank("tensor"), 0);
    EXPECT_EQ(mesh.rank("world"), 6);
    Groups groups(mesh, borrowed(world));
    const auto stages = groups.make(kPipeline, "pipeline");
    EXPECT_EQ(stages->size(), 4);
    EXPECT_EQ(stages->rank(), 3);
    EXPECT_EQ(groups.make(kTensor, "divided layers")->rank(), 0);
  }));
}

}  // namespace
}  // namespace coupler::groups

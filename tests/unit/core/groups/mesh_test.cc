// The mesh: its groups against a naive reference, its sizes from the configuration, its picture.
#include "groups/mesh.h"

#include <coupler/error.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <optional>
#include <set>

#include "config/validate.h"
#include "core/config/loading.h"

namespace coupler::groups {
namespace {

using config::Config;

// Six nested loops give every rank its place; a group is found by comparing all places.
struct Reference {
  explicit Reference(const Mesh::Sizes& sizes) {
    for (int p = 0; p < sizes[0]; ++p)
      for (int d = 0; d < sizes[1]; ++d)
        for (int s = 0; s < sizes[2]; ++s)
          for (int e = 0; e < sizes[3]; ++e)
            for (int c = 0; c < sizes[4]; ++c)
              for (int t = 0; t < sizes[5]; ++t) places.push_back({p, d, s, e, c, t});
  }

  std::vector<int> group_of(size_t rank, Dimensions dimensions) const {
    std::vector<int> result;
    for (size_t other = 0; other < places.size(); ++other) {
      bool same = true;
      for (size_t i = 0; i < 6; ++i)
        same = same && ((dimensions >> i & 1) != 0 || places[rank][i] == places[other][i]);
      if (same) result.push_back(static_cast<int>(other));
    }
    return result;
  }

  std::vector<Mesh::Sizes> places;
};

void expect_like_reference(const Mesh::Sizes& sizes) {
  const Reference reference(sizes);
  for (Dimensions dimensions = 0; dimensions <= kWorld; ++dimensions) {
    std::map<int, std::set<int>> by_number;
    for (size_t rank = 0; rank < reference.places.size(); ++rank) {
      const Mesh mesh(sizes, static_cast<int>(rank));
      const std::vector<int> expected = reference.group_of(rank, dimensions);
      ASSERT_EQ(ranks_of_group(mesh, dimensions), expected) << describe(mesh) << " " << dimensions;
      ASSERT_EQ(group_size(mesh, dimensions), static_cast<int>(expected.size()));
      ASSERT_EQ(expected[static_cast<size_t>(rank_in_group(mesh, dimensions))],
                static_cast<int>(rank));
      by_number[group_number(mesh, dimensions)].insert(expected.begin(), expected.end());
      if (dimensions == 0) continue;
      ASSERT_EQ(dimensions_of(name_of(dimensions)), dimensions) << name_of(dimensions);
    }
    // Each number is one group, and they count from 0.
    const auto groups = reference.places.size() / by_number[0].size();
    ASSERT_EQ(by_number.size(), groups);
    ASSERT_EQ(by_number.rbegin()->first, static_cast<int>(groups) - 1);
    for (const auto& [number, ranks] : by_number) ASSERT_EQ(ranks.size(), by_number[0].size());
  }
}

TEST(Mesh, GroupsOfAnyDimensions_AreThoseOfANaiveReference) {
  for (const Mesh::Sizes& sizes : std::vector<Mesh::Sizes>{{1, 1, 1, 1, 1, 1},
                                                           {1, 4, 1, 1, 1, 1},
                                                           {2, 2, 1, 1, 1, 1},
                                                           {1, 2, 3, 1, 1, 1},
                                                           {2, 3, 1, 1, 1, 2},
                                                           {1, 2, 1, 2, 3, 1},
                                                           {2, 1, 3, 1, 2, 2},
                                                           {2, 2, 2, 2, 2, 2}}) {
    expect_like_reference(sizes);
  }
}

TEST(Mesh, TensorGroups_AreNeighbors) {
  const Mesh mesh({2, 2, 1, 1, 1, 2}, 5);
  EXPECT_EQ(mesh.ranks("tensor"), (std::vector<int>{4, 5}));
  EXPECT_EQ(mesh.ranks("data"), (std::vector<int>{5, 7}));
  EXPECT_EQ(mesh.ranks("pipeline"), (std::vector<int>{1, 5}));
  EXPECT_EQ(mesh.ranks("tensor+data"), (std::vector<int>{4, 5, 6, 7}));
  EXPECT_EQ(mesh.rank("tensor+data"), 1);
  EXPECT_EQ(mesh.size("data+shard"), 2);
  EXPECT_EQ(mesh.rank("shard"), 0);
  EXPECT_EQ(mesh.rank("world"), 5);
  EXPECT_EQ(mesh.size("world"), 8);
}

TEST(Mesh, NamesInProfiles_AreTheDimensionsThatCount) {
  const Mesh three({1, 2, 2, 1, 1, 2}, 0), one({1, 1, 1, 1, 1, 4}, 0);
  EXPECT_EQ(name_in_profile(three, kGradients), "data+shard");
  EXPECT_EQ(name_in_profile(three, kGradients & ~kShard), "data");
  EXPECT_EQ(name_in_profile(three, kWorld), "world");
  EXPECT_EQ(name_in_profile(three, kData | kShard | kTensor), "world");
  EXPECT_EQ(name_in_profile(one, kWorld), "tensor");
  EXPECT_EQ(name_in_profile(Mesh({1, 1, 1, 1, 1, 1}, 0), kWorld), "world");
}

// The message of the Error that action throws; "" if it throws none.
template <class Action>
std::string message_of(const Action& action, ErrorCode code) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    return error.what();
  }
  return "";
}

void expect_message(const std::string& message, const std::string& part) {
  EXPECT_NE(message.find(part), std::string::npos) << "'" << message << "' lacks '" << part << "'";
}

TEST(Mesh, UnknownGroup_IsRefusedWithTheKnownOnes) {
  const Mesh mesh({1, 2, 1, 1, 1, 1}, 0);
  const auto refusal = [&](const std::string& group) {
    return message_of([&] { mesh.rank(group); }, ErrorCode::kInvalidArgument);
  };
  expect_message(refusal("tensr"), "the mesh has no dimension 'tensr'; did you mean 'tensor'?");
  expect_message(refusal("data,shard"),
                 "name one of pipeline, data, shard, expert, context, tensor");
  expect_message(refusal("data+data"), "the group 'data+data' names data twice");
  expect_message(refusal(""), "no dimension ''");
}

Config loaded(const std::vector<std::string>& settings) {
  return config::load({.overrides = settings});
}

TEST(MeshOf, Nothing_IsAllRanksAlongData) {
  const Config config = loaded({});
  EXPECT_FALSE(is_configured(config));
  EXPECT_EQ(mesh_of(config, 6, 2).sizes(), (Mesh::Sizes{1, 6, 1, 1, 1, 1}));
  EXPECT_EQ(explain(config), "");
}

TEST(MeshOf, Rest_IsWhatTheOtherSizesLeave) {
  EXPECT_EQ(mesh_of(loaded({"parallel.pipeline=2"}), 8, 0).sizes(),
            (Mesh::Sizes{2, 4, 1, 1, 1, 1}));
  EXPECT_EQ(mesh_of(loaded({"parallel.shard=rest", "parallel.tensor=2"}), 8, 0).sizes(),
            (Mesh::Sizes{1, 1, 4, 1, 1, 2}));
  EXPECT_EQ(mesh_of(loaded({"parallel.shard=rest", "parallel.data=2"}), 8, 0).sizes(),
            (Mesh::Sizes{1, 2, 4, 1, 1, 1}));
  EXPECT_EQ(mesh_of(loaded({"parallel.data=2", "parallel.pipeline=4"}), 8, 0).sizes(),
            (Mesh::Sizes{4, 2, 1, 1, 1, 1}));
  EXPECT_TRUE(is_configured(loaded({"parallel.data=2"})));
}

TEST(MeshOf, TwoRests_AreAContradiction) {
  const auto conflicts =
      config::conflicts_in(loaded({"parallel.data=rest", "parallel.tensor=rest"}));
  ASSERT_EQ(conflicts.size(), 1U);
  EXPECT_EQ(conflicts[0].detail().subject, "parallel.tensor");
  expect_message(conflicts[0].what(),
                 "parallel.tensor is \"rest\", but parallel.data is \"rest\", too");
  EXPECT_TRUE(config::conflicts_in(loaded({"parallel.tensor=rest"})).empty());
}

TEST(MeshOf, SizesThatDoNotMultiplyToTheWorld_AreRefused) {
  const auto refusal = [](const std::vector<std::string>& settings, int ranks) {
    return message_of([&] { mesh_of(loaded(settings), ranks, 0); }, ErrorCode::kConfig);
  };
  expect_message(refusal({"parallel.tensor=3"}, 8),
                 "[parallel] has data \"rest\" x tensor 3, which needs a multiple of 3 ranks, but "
                 "the job has 8 ranks");
  expect_message(refusal({"parallel.data=2", "parallel.pipeline=2"}, 8),
                 "[parallel] has pipeline 2 x data 2, which are 4 ranks, but the job has 8 ranks");
  expect_message(refusal({"parallel.data=1"}, 2), "every size 1, which are 1 ranks");
  expect_message(
      refusal({"parallel.tensor=9223372036854775807", "parallel.expert=4611686018427387904"}, 2),
      "but the job has 2 ranks");
}

TEST(MeshOf, ValuesThatAreNoSize_AreRefused) {
  const auto refusal = [](const std::string& setting) {
    return message_of([&] { loaded({setting}); }, ErrorCode::kConfig);
  };
  expect_message(refusal("parallel.tensor=0"), "parallel.tensor: must be >= 1, or \"rest\", got 0");
  expect_message(refusal("parallel.tensor=-2"), "got -2");
  expect_message(refusal("parallel.data=all"), "expected integer or \"rest\", got string \"all\"");
  expect_message(refusal("parallel.sequence=2"), "parallel.sequence");
}

TEST(Mesh, Text_IsAGridOfRanks) {
  EXPECT_EQ(Mesh({1, 1, 1, 1, 1, 1}, 0).text(), "1 rank\n");
  EXPECT_EQ(Mesh({1, 3, 1, 1, 1, 1}, 0).text(),
            "  data 0  data 1  data 2\n"
            "       0       1       2\n");
  EXPECT_EQ(Mesh({2, 2, 1, 1, 1, 2}, 0).text(),
            "                      tensor 0  tensor 1\n"
            "pipeline 0  data 0           0         1\n"
            "            data 1           2         3\n"
            "pipeline 1  data 0           4         5\n"
            "            data 1           6         7\n");
  const std::string large = Mesh({1, 100, 1, 1, 1, 2}, 0).text();
  expect_message(large, "data 31           62        63\n… 68 more rows\n");
}

TEST(Explain, AMeshOrWhyThereIsNone) {
  EXPECT_EQ(explain(loaded({"parallel.pipeline=2", "launch.processes=4"})),
            "Mesh of 4 ranks (launch.processes):\n"
            "              data 0  data 1\n"
            "pipeline 0         0       1\n"
            "pipeline 1         2       3\n");
  expect_message(explain(loaded({"parallel.pipeline=2", "launch.processes=3"})),
                 "No mesh of 3 ranks (launch.processes): [parallel] has pipeline 2");
}

}  // namespace
}  // namespace coupler::groups

// Collectives over leaves, with ranks that are threads over a test double: what is sent together,
// and errors for ranks that differ. e2e/training tests their results for every backend.
#include <ATen/Functions.h>
#include <coupler/accelerator.h>

#include "accelerator/collectives.h"
#include "accelerator/consistency_check.h"
#include "core/comm/ranks.h"

namespace coupler::testing {
namespace {

using Map = std::map<std::string, at::Tensor>;

template <class T>
T gathered(comm::Communicator& comm, const T& value) {
  return detail::with_leaves(value, gather_leaves(comm, detail::view_of(value)));
}

// Every rank gets the message, and the communicator works afterwards.
template <class Function>
void expect_all_told(int world_size, ErrorCode code, const std::vector<std::string>& parts,
                     Function&& function) {
  const auto errors = run_ranks(world_size, [&](comm::Communicator& comm) {
    std::optional<Error> told;
    try {
      function(comm);
    } catch (const Error& error) {
      told = error;
    }
    const auto sum = reduce_leaves(comm, detail::view_of(at::ones({2})), ReduceOp::kSum, 1.0);
    EXPECT_EQ(sum[0][0].item<int>(), world_size);
    if (told) throw Error(*told);
  });
  expect_errors(errors, code, parts);
}

TEST(NestedCollectives, Gather_SmallAndLargeLeaves_EachInItsPlace) {
  expect_no_error(run_ranks(3, [](comm::Communicator& comm) {
    const int rank = comm.rank();
    const std::vector<at::Tensor> value = {at::full({2}, rank, at::kByte),
                                           at::full({50000}, rank, at::kInt),
                                           at::full({}, rank, at::kDouble),
                                           at::ones({2, 0}),
                                           at::Tensor(),
                                           at::full({3, 2}, rank, at::kBool).t()};
    const auto result = gathered(comm, value);
    EXPECT_TRUE(at::equal(result[0], at::tensor({0, 0, 1, 1, 2, 2}, at::kByte)));
    EXPECT_EQ(result[1].size(0), 150000);
    EXPECT_EQ(result[1][149999].item<int>(), 2);
    EXPECT_TRUE(at::equal(result[2], at::arange(3, at::kDouble)));
    EXPECT_EQ(result[3].sizes(), at::IntArrayRef({6, 0}));
    EXPECT_FALSE(result[4].defined());
    EXPECT_EQ(result[5].sizes(), at::IntArrayRef({6, 3}));
    EXPECT_FALSE(result[5][1][2].item<bool>());
    EXPECT_TRUE(result[5][2][0].item<bool>());
  }));
}

TEST(NestedCollectives, Gather_DifferentStructure_BothRanksAndPlace) {
  expect_all_told(2, ErrorCode::kMismatch,
                  {"gather: ranks 0 and 1 differ", "value is a map with the keys [\"a\"] on rank 0",
                   "value is a map with the keys [\"b\"] on rank 1"},
                  [](comm::Communicator& comm) {
                    gathered(comm, Map{{comm.rank() == 0 ? "a" : "b", at::ones({1})}});
                  });
}

TEST(NestedCollectives, Gather_DifferentShapeOrType_BothRanksAndPlace) {
  expect_all_told(3, ErrorCode::kMismatch,
                  {"ranks 0 and 2 differ", "value[\"b\"][1] is Float [2, 3] on rank 0",
                   "value[\"b\"][1] is Float [2, 4] on rank 2"},
                  [](comm::Communicator& comm) {
                    const int64_t columns = comm.rank() == 2 ? 4 : 3;
                    gathered(comm, std::map<std::string, std::vector<at::Tensor>>{
                                       {"a", {}}, {"b", {at::ones({1}), at::ones({2, columns})}}});
                  });
  expect_all_told(3, ErrorCode::kMismatch,
                  {"value is Float [1] on rank 0", "value is Long [1] on rank 1",
                   "2 ranks differ from rank 0: 1, 2"},
                  [](comm::Communicator& comm) {
                    gathered(comm, at::ones({1}, comm.rank() == 0 ? at::kFloat : at::kLong));
                  });
}

TEST(NestedCollectives, OtherOperation_BothRanksAndNames) {
  expect_all_told(2, ErrorCode::kMismatch, {"rank 0 calls gather, but rank 1 calls reduce(sum)"},
                  [](comm::Communicator& comm) {
                    const auto view = detail::view_of(at::ones({1}));
                    if (comm.rank() == 0) {
                      gather_leaves(comm, view);
                    } else {
                      reduce_leaves(comm, view, ReduceOp::kSum, 1.0);
                    }
                  });
}

TEST(NestedCollectives, OneRanksProblem_EveryRankHearsOfIt) {
  expect_all_told(3, ErrorCode::kUnsupported,
                  {"value[\"c\"]: tensors of type ComplexFloat cannot be sent"},
                  [](comm::Communicator& comm) {
                    const auto type = comm.rank() == 1 ? at::kComplexFloat : at::kFloat;
                    gathered(comm, Map{{"c", at::ones({1}, type)}});
                  });
  const auto errors = run_ranks(2, [](comm::Communicator& comm) {
    const auto value = at::ones({1});
    gathered(comm, comm.rank() == 1 ? value.to_sparse() : value);
  });
  ASSERT_TRUE(errors[0]);
  EXPECT_NE(std::string(errors[0]->what()).find("gather: rank 1 cannot take part"),
            std::string::npos);
  EXPECT_EQ(errors[0]->detail().rank, 1);
}

TEST(NestedCollectives, GatherOwnRows_UnevenCounts_FirstRowsInOrderOfRanks) {
  for (const int64_t columns : {1, 20000}) {  // together, and alone
    expect_no_error(run_ranks(3, [&](comm::Communicator& comm) {
      const int64_t own = comm.rank() == 1 ? 0 : 2 + comm.rank();  // 2, 0 and 4
      const std::vector<at::Tensor> value = {at::full({5, columns}, comm.rank(), at::kInt),
                                             at::full({5}, comm.rank(), at::kByte)};
      const auto result = gather_own_rows(comm, detail::view_of(value), {{5, own}});
      const at::Tensor expected = at::tensor({0, 0, 2, 2, 2, 2}, at::kByte);
      EXPECT_TRUE(at::equal(result[1], expected));
      EXPECT_TRUE(at::equal(result[0], expected.to(at::kInt).unsqueeze(1).expand({6, columns})));
    }));
  }
}

TEST(NestedCollectives, GatherOwnRows_NobodyHasAny_EmptyResult) {
  expect_no_error(run_ranks(2, [](comm::Communicator& comm) {
    const auto result = gather_own_rows(comm, detail::view_of(at::ones({4, 3})), {{4, 0}});
    EXPECT_EQ(result[0].sizes(), at::IntArrayRef({0, 3}));
  }));
}

TEST(NestedCollectives, GatherOwnRows_WrongRows_ErrorNamesLeaf) {
  const auto told = [](const Map& wrong, const std::string& part) {
    expect_all_told(2, ErrorCode::kInvalidArgument, {part}, [&](comm::Communicator& comm) {
      const Map right = {{"loss", at::ones({4})}, {"x", at::ones({4, 1})}};
      gather_own_rows(comm, detail::view_of(comm.rank() == 0 ? right : wrong), {{6, 4}});
    });
  };
  told({{"loss", at::ones({})}, {"x", at::ones({4, 1})}},
       "gather_for_metrics: value[\"loss\"]: a scalar is not a per-sample value");
  told({{"loss", at::ones({3})}, {"x", at::ones({4, 1})}},
       "value[\"loss\"]: dimension 0 is 3, but this rank's batch has 6 samples, 4 of them its own");
  told({{"loss", at::ones({5})}, {"x", at::ones({5, 1})}},
       "value[\"loss\"]: dimension 0 is 5, but this rank's batch has 6 samples, 4 of them its own");
  told({{"loss", at::ones({4})}, {"x", at::ones({6, 1})}},
       "value[\"x\"]: dimension 0 is 6, but that of an earlier leaf is 4");
}

TEST(NestedCollectives, GatherOwnRows_OneRankOutsideOfALoop_BothRanksNamed) {
  expect_all_told(2, ErrorCode::kMismatch,
                  {"rank 0 calls gather_for_metrics, but rank 1 calls gather_for_metrics outside"},
                  [](comm::Communicator& comm) {
                    std::optional<detail::BatchSamples> samples;
                    if (comm.rank() == 0) samples = {1, 1};
                    gather_own_rows(comm, detail::view_of(at::ones({1})), samples);
                  });
}

TEST(NestedCollectives, Reduce_ManyLeavesOfTwoTypes_NewTensorsOfTheirOwn) {
  expect_no_error(run_ranks(2, [](comm::Communicator& comm) {
    const at::Tensor small = at::ones({2}), large = at::ones({40000});
    const auto view = detail::view_of(std::vector<at::Tensor>{
        small, large, at::ones({3}, at::kLong), at::ones({}), at::ones({0})});
    const auto result = reduce_leaves(comm, view, ReduceOp::kSum, 1.0);
    EXPECT_TRUE(at::equal(result[0], at::full({2}, 2.0f)));
    EXPECT_TRUE(at::equal(result[1], at::full({40000}, 2.0f)));
    EXPECT_TRUE(at::equal(result[2], at::full({3}, 2, at::kLong)));
    EXPECT_EQ(result[3].dim(), 0);
    EXPECT_EQ(result[4].numel(), 0);
    EXPECT_EQ(small[0].item<int>(), 1) << "the original was changed";
    EXPECT_FALSE(result[0].is_alias_of(result[3]));
  }));
}

TEST(NestedCollectives, Reduce_WhatATypeCannot_ErrorNamesLeaf) {
  const auto told = [](const at::Tensor& leaf, ReduceOp reduction, double scale,
                       const std::string& part) {
    expect_all_told(2, ErrorCode::kUnsupported, {part}, [&](comm::Communicator& comm) {
      reduce_leaves(comm, detail::view_of(Map{{"x", leaf}}), reduction, scale);
    });
  };
  told(at::ones({1}, at::kLong), ReduceOp::kSum, 0.5,
       "reduce(sum, scale 0.5): value[\"x\"]: a Long tensor cannot be scaled by 0.5");
  told(at::ones({1}, at::kBool), ReduceOp::kMean, 1.0, "the mean of Bool is not defined");
  told(at::ones({1}, at::kHalf), ReduceOp::kProduct, 1.0,
       "the backend 'double' does not support prod of Half");
}

TEST(NestedCollectives, Broadcast_NoSuchRank_Error) {
  expect_all_told(
      2, ErrorCode::kInvalidArgument, {"broadcast(from 2): there is no such rank in a world of 2"},
      [](comm::Communicator& comm) { broadcast_leaves(comm, detail::view_of(at::ones({1})), 2); });
}

TEST(RequireSame, OfDifferentNumbers_NamesTheFirstRank_AndAll) {
  const auto told = [](const std::vector<int64_t>& numbers) -> std::optional<Error> {
    try {
      require_same(numbers, "load_model", "finds other tensors in here", ErrorCode::kMismatch,
                   {.subject = "here", .hint = "share it"});
    } catch (const Error& error) {
      return error;
    }
    return std::nullopt;
  };
  EXPECT_FALSE(told({7}));
  EXPECT_FALSE(told({7, 7, 7}));
  const auto one = told({7, 7, 8, 7});
  ASSERT_TRUE(one);
  EXPECT_STREQ(one->what(),
               "load_model: rank 2 finds other tensors in here than rank 0\n  hint: share it");
  EXPECT_EQ(one->code(), ErrorCode::kMismatch);
  EXPECT_EQ(one->detail().rank, 2);
  EXPECT_EQ(one->detail().subject, "here");
  const auto two = told({7, 8, 7, 9});
  ASSERT_TRUE(two);
  EXPECT_EQ(two->detail().rank, 1);
  EXPECT_NE(std::string(two->what()).find("than rank 0 (2 ranks differ from rank 0: 1, 3)"),
            std::string::npos)
      << two->what();
}

TEST(SignatureHash, OrderAndBoundaries_Matter) {
  const auto of = [](const std::vector<std::string>& texts) {
    SignatureHash digest;
    for (const auto& text : texts) digest.add(text);
    return std::pair(digest.low(), digest.high());
  };
  EXPECT_EQ(of({"ab", "c"}), of({"ab", "c"}));
  EXPECT_NE(of({"ab", "c"}), of({"a", "bc"}));
  EXPECT_NE(of({"a", "b"}), of({"b", "a"}));
  EXPECT_NE(of({std::string("a\0", 2)}), of({"a"}));
  EXPECT_NE(of({"a"}).first, of({"a"}).second) << "the two halves are the same hash";
}

}  // namespace
}  // namespace coupler::testing

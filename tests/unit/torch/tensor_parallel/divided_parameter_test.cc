// Parts of parameters, from the whole and from chunks of it.
#include "tensor_parallel/divided_parameter.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "sharding/division.h"

namespace coupler::tensor_parallel {
namespace {

void expect_part_from_chunks(const at::Tensor& whole, const strategy::ParameterDivision& division) {
  // Qualified: divided_layer_test.cc, in the same batch, has a part_of of its own.
  const at::Tensor expected = tensor_parallel::part_of(whole, division), flat = whole.view(-1);
  for (const int64_t most : {1, 16, 37, 300, 864}) {
    const at::Tensor part = at::full(division.part_sizes(), -1, whole.options());
    for (int64_t begin = 0; begin < flat.numel(); begin += most) {
      const int64_t count = std::min(most, flat.numel() - begin);
      copy_from_chunk(flat.narrow(0, begin, count), begin, division, part);
    }
    EXPECT_TRUE(at::equal(part, expected))
        << "dimension " << division.dim << " in " << division.blocks << " blocks, rank "
        << division.elements.rank << " of " << division.elements.ranks << ", chunks of " << most;
  }
}

TEST(DividedParameter, PartFromChunks_IsThatOfTheWhole) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const at::Tensor whole = at::arange(24 * 36, dtype).view({24, 36});
    for (const int64_t dim : {0, 1}) {
      for (const int64_t blocks : {1, 3}) {
        for (const int ranks : {1, 2, 4}) {
          for (int rank = 0; rank < ranks; ++rank) {
            expect_part_from_chunks(
                whole, {.sizes = {24, 36},
                        .dim = dim,
                        .blocks = blocks,
                        .elements = sharding::Division::along(whole.size(dim), dim == 0 ? 36 : 1,
                                                              blocks, ranks, rank)});
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace coupler::tensor_parallel

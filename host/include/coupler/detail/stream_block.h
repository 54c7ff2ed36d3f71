// Blocks: consecutive samples of a stream as returned by its dataset, and how to slice and join
// them. A block is a vector of samples, or tensors whose first dimension counts them. Pure
// functions, any thread. Internal to data_loader.h; not included by users.
#pragma once

#include <ATen/core/Tensor.h>
#include <coupler/detail/collate.h>

#include <cstddef>
#include <iterator>
#include <type_traits>
#include <utility>
#include <vector>

namespace coupler::detail {

// Returns the first dimension, which all tensors share. Throws Error(kInvalidArgument) if they
// differ, if one is undefined, and for a scalar: such a batch cannot be split.
size_t common_rows(const std::vector<at::Tensor>& tensors);
// Throws Error(kInvalidArgument) unless each defined tensor has this many rows.
void require_rows(const std::vector<at::Tensor>& tensors, size_t rows);
// Returns `count` rows starting at `first` of each tensor, as views; undefined tensors stay so.
std::vector<at::Tensor> narrow_rows(const std::vector<at::Tensor>& tensors, size_t first,
                                    size_t count);
std::vector<at::Tensor> join_rows(const std::vector<at::Tensor>& one,
                                  const std::vector<at::Tensor>& other);

template <class Block>
struct BlockOps {
  static_assert(TensorsOf<Block>::known,
                "a stream's batches must be vectors of samples, tensors, or examples of tensors: "
                "others cannot be split across processes");
  using Tensors = TensorsOf<Block>;
  static size_t size(const Block& block) { return common_rows(Tensors::list(block)); }
  static Block slice(const Block& block, size_t first, size_t count) {
    return Tensors::make(narrow_rows(Tensors::list(block), first, count));
  }
  static Block join(const Block& one, const Block& other) {
    return Tensors::make(join_rows(Tensors::list(one), Tensors::list(other)));
  }
};

template <class Sample>
struct BlockOps<std::vector<Sample>> {
  static_assert(std::is_copy_constructible_v<Sample>,
                "a stream's samples must be copyable: the first ones fill an incomplete last step");
  using Block = std::vector<Sample>;
  static size_t size(const Block& block) { return block.size(); }
  static Block slice(const Block& block, size_t first, size_t count) {
    const auto begin = block.begin() + static_cast<std::ptrdiff_t>(first);
    return Block(begin, begin + static_cast<std::ptrdiff_t>(count));
  }
  static Block join(Block one, const Block& other) {
    one.insert(one.end(), other.begin(), other.end());
    return one;
  }
};

}  // namespace coupler::detail

// Division: which elements of a tensor a rank has if the tensor is divided along one dimension over
// a tensor group. Row-major, that are runs of equal length, dealt out to the ranks in turns:
//
//   [4, 6] along dimension 1 over 2 ranks: runs of 3; rank 0 has elements 0-2, 6-8, 12-14, 18-20.
//
// A rank's *part* is its elements one after another. Plain data; [any-thread].
#pragma once

#include <algorithm>
#include <cstdint>

namespace coupler::sharding {

struct Division {
  int64_t run = 0;  // elements; any number if there is one rank
  int ranks = 1, rank = 0;

  // Of a tensor of `numel` elements whose dimension of `size` is followed by dimensions of `inner`
  // elements together. blocks: the dimension consists of that many equal blocks, each of which
  // is divided (queries, keys and values in one weight). The sizes must divide.
  static Division along(int64_t size, int64_t inner, int64_t blocks, int ranks, int rank) {
    return {size / blocks / ranks * inner, ranks, rank};
  }

  bool is_whole() const { return ranks == 1; }
  // Whether each rank's part of a tensor of `numel` elements is contiguous in it.
  bool is_contiguous(int64_t numel) const { return is_whole() || run * ranks == numel; }
  // Where an element of the part is in the tensor.
  int64_t in_tensor(int64_t of_part) const {
    if (is_whole()) return of_part;
    return (of_part / run * ranks + rank) * run + of_part % run;
  }
  // The reverse; -1 if another rank has the element.
  int64_t in_part(int64_t of_tensor) const {
    if (is_whole()) return of_tensor;
    const int64_t turn = of_tensor / run;
    return turn % ranks == rank ? turn / ranks * run + of_tensor % run : -1;
  }
  // How many elements follow each other in the tensor, from this one of the part on, up to `end`.
  int64_t together(int64_t of_part, int64_t end) const {
    const int64_t rest = end - of_part;
    return is_whole() ? rest : std::min(rest, run - of_part % run);
  }
  // The element of the tensor from this one on that the rank has first.
  int64_t next_in_tensor(int64_t of_tensor) const {
    if (is_whole()) return of_tensor;
    const int64_t turn = of_tensor / run, ahead = (rank - turn % ranks + ranks) % ranks;
    return ahead == 0 ? of_tensor : (turn + ahead) * run;
  }
  // Calls visit(element of the part, element of the tensor, count) for the elements of the part
  // from begin to end, a run at a time.
  template <class Visit>
  void each_run(int64_t begin, int64_t end, const Visit& visit) const {
    for (int64_t at = begin; at < end;) {
      const int64_t count = together(at, end);
      visit(at, in_tensor(at), count);
      at += count;
    }
  }
  bool operator==(const Division&) const = default;
};

}  // namespace coupler::sharding

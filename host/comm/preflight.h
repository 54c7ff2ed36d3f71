// Preflight: before a communicator is created its ranks verify through the store that they mean the
// same thing, and those of one machine meet at an order board. Collective, bounded by timeout; no
// state.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/order_board.h"
#include "rendezvous/store.h"

namespace coupler {

// What must be equal on every rank, in the order in which differences are reported.
using Facts = std::vector<std::pair<std::string, std::string>>;

struct Meeting {
  std::shared_ptr<Store> store;  // of this communicator
  std::string name;
  int rank = 0;
  int world = 1;
  std::chrono::nanoseconds timeout{};
};

// Throws Error(kMismatch) naming key, ranks and both values, or Error(kTimeout) naming the ranks
// that never came.
void verify_facts(const Meeting& meeting, const Facts& facts);

// By rank, what each calls its rank in the job. Throws Error(kTimeout) naming who never said it.
std::vector<int> share_world_ranks(const Meeting& meeting, int own);

// Null on every rank where some rank cannot share the others' memory.
std::unique_ptr<OrderBoard> share_board(const Meeting& meeting);

}  // namespace coupler

// Ranks: runs one function on W threads, each with its own Communicator over a test double.
#pragma once

#include <coupler/error.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "store/store.h"

namespace coupler::testing {

inline std::string double_path(const std::string& name) {
  return std::string(COUPLER_BINARY_DIR) + "/lib/tests/lib" + name + ".so";
}

struct RankSetup {
  config::BackendConfig backend;
  rendezvous::ProcessInfo process;
  std::shared_ptr<store::Store> store;
};

inline comm::CommunicatorOptions options_of(const RankSetup& setup) {
  return {.plugin = plugin::Plugin::load(setup.backend),
          .process = setup.process,
          .store = setup.store,
          .backend = &setup.backend};
}

inline RankSetup setup_of(int rank, int world_size, const std::shared_ptr<store::Store>& store,
                          const std::string& plugin = "double") {
  RankSetup setup;
  setup.backend.use = double_path(plugin);
  setup.backend.timeout = std::chrono::seconds(20);
  setup.process.rank = setup.process.local_rank = rank;
  setup.process.world_size = setup.process.local_world_size = world_size;
  setup.store = store;
  return setup;
}

using RankFunction = std::function<void(comm::Communicator&)>;
using SetupFunction = std::function<void(RankSetup&)>;

// The Error of each rank, or nullopt if the function returned.
inline std::vector<std::optional<Error>> run_ranks(int world_size, const RankFunction& function,
                                                   const SetupFunction& change = {},
                                                   const std::string& plugin = "double") {
  auto store = std::make_shared<store::MemoryStore>();
  std::vector<std::optional<Error>> errors(static_cast<size_t>(world_size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        RankSetup setup = setup_of(rank, world_size, store, plugin);
        if (change) change(setup);
        const auto communicator = comm::Communicator::create(options_of(setup));
        function(*communicator);
      } catch (const Error& error) {
        errors[static_cast<size_t>(rank)] = error;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

inline db_op all_reduce(std::vector<float>& values) {
  db_op op{};
  op.kind = DB_ALL_REDUCE;
  op.dtype = DB_F32;
  op.reduce = DB_SUM;
  op.send = op.recv = values.data();
  op.count = values.size();
  return op;
}

inline db_op barrier() {
  db_op op{};
  op.kind = DB_BARRIER;
  return op;
}

inline void expect_no_error(const std::vector<std::optional<Error>>& errors) {
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    EXPECT_FALSE(errors[rank]) << "rank " << rank << ": " << errors[rank]->what();
  }
}

// Expects on every rank an error of that code whose text has all the parts.
inline void expect_errors(const std::vector<std::optional<Error>>& errors, ErrorCode code,
                          const std::vector<std::string>& parts) {
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    ASSERT_TRUE(errors[rank]) << "rank " << rank << " returned";
    EXPECT_EQ(errors[rank]->code(), code) << errors[rank]->what();
    for (const std::string& part : parts) {
      EXPECT_NE(std::string(errors[rank]->what()).find(part), std::string::npos)
          << "rank " << rank << " lacks '" << part << "': " << errors[rank]->what();
    }
  }
}

}  // namespace coupler::testing

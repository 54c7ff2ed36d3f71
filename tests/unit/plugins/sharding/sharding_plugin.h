// The plugins as a host uses them: loaded, asked for a communicator over a test double, and for the
// plan of a model. For one thread.
#pragma once

#include <coupler/sharding.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <variant>
#include <vector>

#include "fake_base.h"
#include "test_model.h"

namespace db {

// An option as set by the user.
struct Given {
  const char* key;
  std::variant<const char*, int64_t, bool, double> value;
};
using Givens = std::vector<Given>;

inline Given text(const char* key, const char* value) { return {key, value}; }
inline Given number(const char* key, int64_t value) { return {key, value}; }
inline Given flag(const char* key, bool value) { return {key, value}; }

// A copy of a db_plan, with bounds for `ranks` ranks.
struct Plan {
  struct Parameter {
    uint64_t index;
    std::vector<uint64_t> bounds;
    bool operator==(const Parameter&) const = default;
  };
  struct Unit {
    std::string name;
    std::vector<Parameter> parameters;
    db_keep keep;
    db_gradients gradients;
    db_dtype compute, reduce, output;
    bool operator==(const Unit&) const = default;
  };
  struct Offload {
    db_place place = DB_PLACE_STAY;  // also if there is none
    bool pinned = false;
    std::string folder;
    int32_t buffers = 0;
    bool operator==(const Offload&) const = default;
  };
  std::vector<Unit> units;
  int32_t group, prefetch;
  uint64_t live_elements, reduce_bytes;
  int32_t overlap;
  Offload optimizer, parameters;
};

struct Answer {
  db_status status = DB_OK;
  std::string message;  // of an error
  Plan plan;
};

struct Where {
  int32_t rank = 0;
  int32_t size = 1;
  int32_t local_rank = 0;
  int32_t local_size = 1;
};

// Rank r of n on one machine.
inline Where rank_of(int32_t rank, int32_t size) { return {rank, size, rank, size}; }

class ShardingPlugin {
 public:
  explicit ShardingPlugin(const std::string& name);

  const DistributedBackend& table() const { return *table_; }
  const db_sharding& sharding() const { return *sharding_; }

  // create, and its message if it fails.
  db_status create(const Where& where, const Givens& options, db_communicator* base,
                   db_communicator** result, std::string* message) const;

  // create over a FakeBase, plan and release. ranks: per group, for the bounds.
  Answer plan(TestModel& model, const Where& where, const Givens& options, int32_t ranks) const;
  Answer plan(TestModel& model, const Where& where, const Givens& options = {}) const {
    return plan(model, where, options, where.size);
  }
  // The message of create or plan, whichever fails, with DB_ERR_INVALID_ARGUMENT.
  std::string refusal(TestModel& model, const Where& where, const Givens& options) const;

 private:
  const DistributedBackend* table_;
  const db_sharding* sharding_;
};

// One line per unit: "fc1 use shard: fc1.weight [0 320 640], fc1.bias [0 32 64]".
std::string render(const Plan& plan, TestModel& model);

}  // namespace db

// From a model to a plan: ways to split it into units, which are lists of parameters that are
// gathered and released together; which rank owns which part of a unit; and the memory of a
// db_plan. Pure functions; [any-thread].
#pragma once

#include <coupler/sharding.h>

#include <string>
#include <vector>

#include "common/model.h"
#include "common/options.h"

namespace db {

struct UnitDraft {
  std::string name;                // for messages
  std::vector<size_t> parameters;  // indices, in memory order
};

uint64_t count_elements(const Model& model, const UnitDraft& draft);

// One unit for each module that registers some of the parameters. The parameters must be in
// registration order.
std::vector<UnitDraft> units_by_module(const Model& model, const std::vector<size_t>& parameters);

// Joins each unit with the ones after it until it has at least this many elements; a remainder at
// the end joins the last unit. A joined unit is named "FIRST..LAST".
std::vector<UnitDraft> join_small(const Model& model, const std::vector<UnitDraft>& drafts,
                                  uint64_t least);

// One unit for each marked module, with all parameters in and below it except those of marked
// modules nested inside; the rest forms the root's unit. Ordered by their first parameters.
std::vector<UnitDraft> units_at(const Model& model, const std::vector<size_t>& parameters,
                                const std::vector<bool>& marked);

// Units of consecutive parameters with up to this many elements, or of one parameter that is
// larger. They are named "NAME 0", "NAME 1", ….
std::vector<UnitDraft> buckets(const Model& model, const std::vector<size_t>& parameters,
                               uint64_t most, const std::string& name);

// Splits a unit whose parameters have several types into one per type, "NAME (f32)", "NAME (f64)".
std::vector<UnitDraft> split_by_dtype(const Model& model, std::vector<UnitDraft> drafts);

// Which rank owns which elements of a unit's parameters: the bounds of coupler/sharding.h, N + 1
// numbers per parameter for N ranks.

using Bounds = std::vector<uint64_t>;

// Splits each parameter into chunks of ceil(rows / ranks) rows, as torch.chunk does on dimension 0:
// the last ranks may own fewer rows or none. Rank 0 owns a scalar.
std::vector<Bounds> row_bounds(const Model& model, const UnitDraft& draft, int32_t ranks);

// Splits the concatenated parameters, as one flat buffer, into equal parts up to rounding. If every
// rank gets at least 16 elements, cuts are aligned to 16 elements from a parameter's start.
std::vector<Bounds> flat_bounds(const Model& model, const UnitDraft& draft, int32_t ranks);

// A plan's memory: make_plan builds one from units, release_plan frees it.

struct PlannedUnit : UnitDraft {
  std::vector<Bounds> bounds;  // one per parameter
  db_keep keep = 0;
  db_gradients gradients = 0;
  db_dtype compute = 0;  // 0: the parameter's own
  db_dtype reduce = 0;
  db_dtype output = 0;
};

struct PlannedOffload {
  db_place place = DB_PLACE_STAY;
  bool pinned = false;
  std::string folder;
  int32_t buffers = 0;
};

struct PlannedOffloads {
  PlannedOffload optimizer;
  PlannedOffload parameters;
};

// A plan of these units; settings of the whole plan (group, prefetch, …) come from rest. Its owner,
// ultimately the host, frees it with release_plan.
const db_plan* make_plan(std::vector<PlannedUnit> units, const db_plan& rest,
                         PlannedOffloads offloads = {});

// plan: from make_plan, or NULL.
void release_plan(const db_plan* plan);

// The options, under DeepSpeed's names, that choose where a sharding plugin keeps state that is not
// in use, and their validated form.

// Reads TABLE.device (none, cpu, nvme), TABLE.nvme_path, TABLE.pin_memory and TABLE.buffer_count.
// A wrong value, or an option that the device does not read, is DB_ERR_INVALID_ARGUMENT.
Failure read_offload(const Options& options, const std::string& table, PlannedOffload* offload);

}  // namespace db

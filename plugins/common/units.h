// Ways to split a model into units: lists of parameters that are gathered and released together.
// Which rank owns which part of a unit is decided in layout.h. Pure functions; [any-thread].
#pragma once

#include <string>
#include <vector>

#include "common/model.h"

namespace db {

struct UnitDraft {
  std::string name;                // for messages
  std::vector<size_t> parameters;  // indices, in memory order
};

// The model's own name in messages; its actual name is empty.
inline constexpr char kRootName[] = "(root)";

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

}  // namespace db

// Ways of cutting a model into units: lists of parameters that are gathered and released together.
// They say which parameters, not who owns what of them (layout.h). Pure functions; [any-thread].
#pragma once

#include <string>
#include <vector>

#include "common/model.h"

namespace db {

struct UnitDraft {
  std::string name;                // for messages
  std::vector<size_t> parameters;  // indices, in the order they shall have in memory
};

// What messages call the model itself, whose own name is empty.
inline constexpr char kRootName[] = "(root)";

uint64_t count_elements(const Model& model, const UnitDraft& draft);

// One unit for each module that registers some of the parameters, which come in order of
// registration.
std::vector<UnitDraft> units_by_module(const Model& model, const std::vector<size_t>& parameters);

// Joins each unit with those behind it until it has at least this many elements; what is left at
// the end joins the last one. A joined unit is called "FIRST..LAST".
std::vector<UnitDraft> join_small(const Model& model, const std::vector<UnitDraft>& drafts,
                                  uint64_t least);

// One unit for each module that is marked, with all parameters in and below it that no marked
// module further inside has; the rest is the unit of the root. In order of their first parameters.
std::vector<UnitDraft> units_at(const Model& model, const std::vector<size_t>& parameters,
                                const std::vector<bool>& marked);

// Parameters that follow each other, up to this many elements a unit, or one parameter where that
// is larger. They are called "NAME 0", "NAME 1", ….
std::vector<UnitDraft> buckets(const Model& model, const std::vector<size_t>& parameters,
                               uint64_t most, const std::string& name);

// A unit whose parameters have several types becomes one for each, "NAME (f32)", "NAME (f64)".
std::vector<UnitDraft> split_by_dtype(const Model& model, std::vector<UnitDraft> drafts);

}  // namespace db

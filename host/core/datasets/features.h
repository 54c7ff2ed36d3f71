// The types of values: found, joined, and applied to values. Pure functions, any thread.
#pragma once

#include <coupler/row.h>

#include <memory>
#include <string>
#include <vector>

namespace coupler::datasets {

// The type of one value, without a name. Throws Error(kInvalidArgument) for a list whose elements
// have different types.
Feature feature_of(const Value& value);

// Widens `into`, so that it also fits the value, or what fits `other`: null gives way to any type,
// int64 to float64, a struct gets the other's fields. False, and `into` is undefined, if the types
// exclude each other.
bool merge(Feature& into, const Value& value);
bool merge(Feature& into, const Feature& other);

struct Merged {
  bool merged = true;
  std::string column;  // else: the column at fault
};

// Like merge, for the columns of a row: those that `into` lacks are appended. Returns the first
// column whose types exclude each other.
Merged merge(std::vector<Feature>& into, const Row& row);
Merged merge(std::vector<Feature>& into, const std::vector<Feature>& other);

// Brings a value into the form of its type: integers of a float64 column become doubles; a struct
// gets all fields, in order, those that it lacks as null. A feature of type null fits any value.
// False, and the value is undefined, if it has another type.
bool conform(Value& value, const Feature& feature);

// Likewise for a row, which gets these names, those of the features. Returns the first column that
// has another type, or that is not among the features.
Merged conform(Row& row, const std::vector<Feature>& features,
               const std::shared_ptr<const std::vector<std::string>>& names);

// The names of columns, to be shared by their rows.
std::vector<std::string> names_of(const std::vector<Feature>& features);

// Throws Error(kInvalidArgument) for a list without one element type, a struct without fields,
// names that are given twice, and more levels than files may have (kMostNesting).
void check_features(const std::vector<Feature>& features);

// Levels of lists and structs, the row included.
inline constexpr int kMostNesting = 64;

}  // namespace coupler::datasets

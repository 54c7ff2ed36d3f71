// Table: rows by their number, wherever they come from: a file, or another table. Immutable; any
// thread may read. The rest of this folder makes them.
#pragma once

#include <coupler/row.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace coupler::datasets {

class Table {
 public:
  Table() = default;
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;
  virtual ~Table() = default;

  virtual const std::vector<Feature>& features() const = 0;
  virtual size_t size() const = 0;

  // A row below size(), its values in the form of their features. Throws Error naming the place.
  virtual Row read(size_t row) const = 0;

  // Where a row is, for messages: "reviews.jsonl:17".
  virtual std::string place(size_t row) const = 0;

  // The table with these columns only, given by position, which reads no others if it can do so.
  // `self` is this table.
  virtual std::shared_ptr<const Table> select(const std::shared_ptr<const Table>& self,
                                              const std::vector<size_t>& columns) const;
};

}  // namespace coupler::datasets

// Tables made of other tables. Nothing is copied: a row is read when it is needed. Functions that
// return a view throw Error(kInvalidArgument) for a wrong argument.
#pragma once

#include <coupler/row.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "datasets/table.h"

namespace coupler::datasets {

using TablePtr = std::shared_ptr<const Table>;

// Rows in memory; those that lack a column get null. Throws Error(kInvalidArgument) if the types of
// a column exclude each other.
TablePtr table_of(std::vector<Row> rows);

// The rows with these numbers, in this order, which may repeat.
TablePtr select_rows(const TablePtr& table, std::vector<size_t> rows);
// `count` rows from `first` on.
TablePtr slice_rows(const TablePtr& table, size_t first, size_t count);

// The columns with these names, in this order.
TablePtr select_columns(const TablePtr& table, const std::vector<std::string>& columns);
TablePtr remove_columns(const TablePtr& table, const std::vector<std::string>& columns);
TablePtr rename_column(const TablePtr& table, const std::string& from, const std::string& to);

// The rows of all tables, one after another. They need the same columns; types are widened.
TablePtr concatenate(const std::vector<TablePtr>& tables);

// Every row with the columns that function returns, which replace those of the same name, and
// without `removed`. The first row is mapped at once, since it decides the columns; every other row
// has to have them. function is called by any thread that reads.
TablePtr map_rows(const TablePtr& table, std::function<Row(const Row&)> function,
                  const std::vector<std::string>& removed);

// The numbers of the rows for which function returns true.
std::vector<size_t> filter_rows(const Table& table,
                                const std::function<bool(const Row&)>& function);

// Calls function(), which handles a row of the table; an exception becomes Error(kInvalidArgument)
// "`what` failed at row 5 (file:7): …", with the original nested in it.
void at_row(const char* what, const Table& table, size_t row,
            const std::function<void()>& function);

}  // namespace coupler::datasets

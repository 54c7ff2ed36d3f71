// Makes a DatasetBatch of rows. Pure function, any thread.
#pragma once

#include <coupler/dataset.h>

#include <cstddef>
#include <string>
#include <vector>

namespace coupler::datasets {

// rows: of the table, by their numbers, which are for messages. Throws as Dataset::get_batch.
DatasetBatch make_batch(const Table& table, const std::vector<size_t>& numbers,
                        const std::vector<Row>& rows, const TensorFormat& format);

}  // namespace coupler::datasets

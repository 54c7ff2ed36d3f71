// The extension coupler.shrink/1, for the ranks of ranks.h.
#pragma once

#include <coupler/shrink.h>
#include <gtest/gtest.h>

#include <vector>

#include "ranks/ranks.h"

namespace backend_test {

template <typename Extension>
const Extension* extension(const Rank& self, const char* id) {
  const void* const found = self.functions->get_extension(self.communicator, id);
  EXPECT_NE(found, nullptr) << id;
  return static_cast<const Extension*>(found);
}

inline db_status shrink(Rank& self, const std::vector<int32_t>& excluded, uint64_t flags,
                        db_communicator** part) {
  self.error.reset();
  return extension<db_shrink>(self, DB_SHRINK)
      ->shrink(self.communicator, excluded.data(), excluded.size(), flags, part, self.error);
}

// The result of an all-reduce of 1 on `part`, which is destroyed afterwards.
inline float sum_on(db_communicator* part, db_memory memory) {
  Error error;
  std::vector<float> data(100, 1);
  db_op op = all_reduce(data.data(), data.data(), data.size());
  op.struct_size = sizeof op;
  op.memory = memory;
  op.flags = DB_OP_BLOCKING;
  db_request* request = nullptr;
  db_status status = part->functions->submit(part, &op, &request, error);
  if (status == DB_IN_PROGRESS) {
    status = part->functions->wait_host(request, -1, error);
    part->functions->release(request);
  }
  EXPECT_EQ(status, DB_OK) << error.text.data();
  part->functions->destroy(part);
  return data[99];
}

}  // namespace backend_test

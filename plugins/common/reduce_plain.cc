#include "common/reduce_kernels.h"

namespace db {

constinit const ReduceTable kReducePlain = make_table();

}  // namespace db

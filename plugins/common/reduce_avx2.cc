// Compiled with -mavx2; empty on other architectures.
#if defined(__x86_64__)
#include "common/reduce_kernels.h"

namespace db {

constinit const ReduceTable kReduceAvx2 = make_table();

}  // namespace db
#endif

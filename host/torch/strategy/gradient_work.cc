#include "strategy/gradient_work.h"

namespace coupler::strategy {

void ReductionWork::step() {
  work_.wait();
  const db_op op = reduction_.operation(issued_++);
  if (overlap_) {
    work_ = comm_.submit(op);
  } else {
    comm_.run(op);
  }
}

void ReductionWork::finish() {
  while (more()) step();
  work_.wait();
  reduction_.finish();
}

}  // namespace coupler::strategy

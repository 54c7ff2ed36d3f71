// The process's Accelerator, and its communicator for modules that communicate inside forward and
// backward (SyncBatchNorm). Set and cleared by the Accelerator; read by the training thread.
#pragma once

#include "comm/communicator.h"

namespace coupler {

class Accelerator;

// The latest Accelerator if a program has several; null: none.
Accelerator* current_accelerator();
comm::Communicator* current_communicator();  // null: no Accelerator, or one process
void set_current(Accelerator* accelerator, comm::Communicator* communicator);

}  // namespace coupler

// The communicator of the process's Accelerator, for modules that communicate inside forward and
// backward (SyncBatchNorm). Set and cleared by the Accelerator; read by the thread that trains.
#pragma once

#include "comm/communicator.h"

namespace coupler {

Communicator* current_communicator();  // null: no Accelerator, or one process
void set_current_communicator(Communicator* communicator);

}  // namespace coupler

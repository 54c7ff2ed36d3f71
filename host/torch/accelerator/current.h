// The process's Accelerator, and its communicator for modules that communicate inside forward and
// backward (SyncBatchNorm). Set and cleared by the Accelerator; read by the training thread.
#pragma once

#include "comm/communicator.h"

namespace coupler {

class Accelerator;

comm::Communicator* current_communicator();  // null: no Accelerator, or one process
void set_current_communicator(comm::Communicator* communicator);

// The Accelerator, the latest one if a program has several; null: none.
Accelerator* current_accelerator();
void set_current_accelerator(Accelerator* accelerator);

}  // namespace coupler

#include "accelerator/current.h"

namespace coupler {
namespace {
comm::Communicator* current = nullptr;
Accelerator* accelerator_now = nullptr;
}  // namespace

comm::Communicator* current_communicator() { return current; }
void set_current_communicator(comm::Communicator* communicator) { current = communicator; }
Accelerator* current_accelerator() { return accelerator_now; }
void set_current_accelerator(Accelerator* accelerator) { accelerator_now = accelerator; }

}  // namespace coupler

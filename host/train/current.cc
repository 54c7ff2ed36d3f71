#include "train/current.h"

namespace coupler {
namespace {
Communicator* current = nullptr;
}

Communicator* current_communicator() { return current; }
void set_current_communicator(Communicator* communicator) { current = communicator; }

}  // namespace coupler

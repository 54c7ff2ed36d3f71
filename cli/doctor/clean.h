// `coupler doctor --clean`: removes and lists the leftovers of killed jobs. Callable from any
// thread.
#pragma once

namespace coupler::cli {

// Prints what was removed, and what could not be and why. Returns 0, or 1 if anything remains.
int clean(bool json);

}  // namespace coupler::cli

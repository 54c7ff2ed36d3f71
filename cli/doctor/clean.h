// `coupler doctor --clean`: removes what killed jobs left behind, and lists it. Plain function; no
// thread rule.
#pragma once

namespace coupler::cli {

// Prints what was removed, and what could not be and why. 0, or 1 where something is still there.
int clean(bool json);

}  // namespace coupler::cli

// A program whose main does not call coupler::enter_launched. For launch_from_code_test.cc.
#include <coupler/coupler.h>
#include <coupler/launch.h>

#include <cstdio>

namespace {
void nothing() {}
const coupler::Launchable launchable_nothing("nothing", nothing);
}  // namespace

int main() {
  try {
    coupler::launch(2, nothing);
    return 0;
  } catch (const coupler::Error& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
}

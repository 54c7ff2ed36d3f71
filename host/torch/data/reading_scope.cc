#include "data/reading_scope.h"

namespace coupler::detail {
namespace {
ReadingHooks hooks;
}  // namespace

void set_reading_hooks(ReadingHooks given) { hooks = given; }

ReadingScope::ReadingScope() {
  if (hooks.begin != nullptr) hooks.begin();
}
ReadingScope::~ReadingScope() {
  if (hooks.end != nullptr) hooks.end();
}

}  // namespace coupler::detail

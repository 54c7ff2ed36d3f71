// ReadingScope: lives while a loader reads from its dataset on the thread that runs the loop, so
// that a dry run can give datasets real memory. Set the hooks once, before any loader is used.
#pragma once

namespace coupler::detail {

struct ReadingHooks {
  void (*begin)() = nullptr;
  void (*end)() = nullptr;
};
void set_reading_hooks(ReadingHooks hooks);

class ReadingScope {
 public:
  ReadingScope();
  ~ReadingScope();
  ReadingScope(const ReadingScope&) = delete;
  ReadingScope& operator=(const ReadingScope&) = delete;
};

}  // namespace coupler::detail

// JSON and CSV files of arbitrary bytes. What load_table accepts has been read once, so every row
// must be readable, with values of their columns' types.
#include <coupler/error.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/file_descriptor.h"
#include "datasets/csv_table.h"
#include "datasets/features.h"
#include "datasets/json_table.h"
#include "datasets/table.h"

namespace {

using coupler::datasets::Table;

// The table that open() returns for the file, if it accepts it.
template <class Open>
void read_rows(const Open& open) {
  std::shared_ptr<const Table> table;
  try {
    table = open();
  } catch (const coupler::Error& error) {
    if (error.code() != coupler::ErrorCode::kIo || *error.what() == '\0') std::abort();
    return;
  }
  for (size_t row = 0; row < table->size(); ++row) {
    std::vector<coupler::Feature> features = table->features();
    const coupler::Row read = table->read(row);
    if (!coupler::datasets::merge(features, read).merged) std::abort();
    if (features != table->features()) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const coupler::UniqueFd file(::memfd_create("dataset", MFD_CLOEXEC));
  if (!coupler::write_fully(file.get(), {reinterpret_cast<const char*>(bytes), size})) std::abort();
  const std::string path = "/proc/self/fd/" + std::to_string(file.get());
  read_rows([&] {
    auto json = coupler::datasets::open_json(path);
    auto features = coupler::datasets::infer_json(json);
    return coupler::datasets::json_table(std::move(json), std::move(features));
  });
  read_rows([&] {
    auto csv = coupler::datasets::open_csv(path, {});
    auto features = coupler::datasets::infer_csv(csv);
    return coupler::datasets::csv_table(std::move(csv), std::move(features));
  });
  return 0;
}

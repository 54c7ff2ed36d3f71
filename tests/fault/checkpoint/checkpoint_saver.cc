// checkpoint_saver FOLDER COUNT LIMIT BYTES: saves checkpoints as a job would, and reports on
// descriptor 3 which are committed: "committed 4". A failed save is reported, and the next one
// follows, as in a job whose disk recovers.
#include <coupler/error.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <string>

#include "base/durable_file.h"
#include "checkpoint/folder_writer.h"
#include "saved_content.h"

namespace coupler {
namespace {

constexpr int kReport = 3;

void report(const std::string& line) {
  if (::write(kReport, line.data(), line.size()) != static_cast<ssize_t>(line.size())) ::_exit(9);
}

checkpoint::ManifestFile write_file(const std::string& folder, int64_t number, size_t index,
                                    size_t bytes) {
  const std::string name(testing_checkpoint::kFileNames.at(index));
  const std::string content = testing_checkpoint::saved_content(number, index, bytes);
  DurableFile file(folder + "/" + name);
  const size_t piece = bytes / 3 + 1;
  for (size_t at = 0; at < bytes; at += piece)
    file.write(content.data() + at, std::min(piece, bytes - at));
  const WrittenFile written = file.finish();
  return {name, written.bytes, written.sha256};
}

void save(checkpoint::FolderWriter& writer, int64_t limit, size_t bytes) {
  checkpoint::Manifest manifest;
  manifest.number = writer.next_number();
  manifest.saved_at = "2026-11-22T15:04:05Z";
  const std::string folder = writer.begin(manifest.number);
  manifest.save = writer.save();
  for (size_t i = 0; i < testing_checkpoint::kFileNames.size(); ++i)
    manifest.files.push_back(write_file(folder, manifest.number, i, bytes));
  writer.commit(manifest);
  report(fmt::format("committed {}\n", manifest.number));
  writer.prune(limit);
}

int run(const std::string& folder, int count, int64_t limit, size_t bytes) {
  checkpoint::FolderWriter writer(folder);
  bool failed = false;
  for (int i = 0; i < count; ++i) {
    try {
      save(writer, limit, bytes);
    } catch (const Error& error) {
      report(fmt::format("failed: {}\n", error.what()));
      writer.abandon();
      failed = true;
    }
  }
  return failed ? 1 : 0;
}

}  // namespace
}  // namespace coupler

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  try {
    return coupler::run(argv[1], std::atoi(argv[2]), std::atoll(argv[3]),
                        static_cast<size_t>(std::atoll(argv[4])));
  } catch (const std::exception& error) {
    coupler::report(std::string("failed: ") + error.what() + "\n");
    return 1;
  }
}

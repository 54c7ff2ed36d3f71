// Writes a run for the scripts check_*.py, which read it with the programs that the formats are
// for: tracking_sample FOLDER TRACKER… The project is TRACKING_SAMPLE_PROJECT, or "sample".
#include <coupler/error.h>

#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/process.h"
#include "track/trackers.h"

int main(int argc, char** argv) {
  using namespace coupler;  // NOLINT(google-build-using-namespace): a main function
  install_terminate_handler();
  if (argc < 3) {
    std::fputs("usage: tracking_sample FOLDER TRACKER...\n", stderr);
    return 2;
  }
  TrackerRun run;
  run.project = environment_value("TRACKING_SAMPLE_PROJECT");
  if (run.project.empty()) run.project = "sample";
  run.run_name = "first";
  run.folder = argv[1];
  run.config = {
      {"lr", 0.001}, {"layers", int64_t{3}}, {"bf16", true}, {"optimizer", std::string("AdamW")}};
  std::vector<std::shared_ptr<Tracker>> trackers;
  for (int i = 2; i < argc; ++i) {
    auto tracker = track::make_tracker(argv[i]);
    if (tracker == nullptr) {
      throw Error(ErrorCode::kUsage, std::string("unknown tracker '") + argv[i] + "'");
    }
    trackers.push_back(std::move(tracker));
  }
  TrackerOptions options;
  options.end_timeout = std::chrono::minutes(2);
  track::Trackers all(trackers, run, options);
  for (int64_t step = 0; step < 1500; ++step) {
    TrackValues values = {{"train/loss", 1.0 / static_cast<double>(1 + step)}};
    if (step % 100 == 0) values.emplace_back("epoch", step / 100);
    if (step == 7) {
      values.emplace_back("note", std::string("seven, \"é\" \xff"));
      values.emplace_back("odd: name", true);
      values.emplace_back("nan", std::nan(""));
      values.emplace_back("inf", std::numeric_limits<double>::infinity());
    }
    all.log(std::move(values), step);
    if (step != 7) continue;
    track::TrackedMedia media;
    media.images = {image_of_pixels("picture", 3, 2, 1, {0, 50, 100, 150, 200, 250}, "six grays")};
    media.tables = {
        {"words", {"text", "loss"}, {{std::string("a"), 0.5}, {std::string("b"), 1.5}}}};
    media.artifacts = {{argv[0], "program"}};
    all.log_media(std::move(media), step);
  }
  all.end();
  return 0;
}

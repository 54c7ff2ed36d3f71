// coupler report: writes one page with plots of what a run left in a folder.
#include <coupler/error.h>
#include <fmt/format.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>

#include "base/durable_file.h"
#include "cli/commands.h"
#include "cli/report/report_page.h"
#include "cli/report/run_record.h"

namespace coupler::cli {

const char kReportHelp[] = R"help(usage: coupler report FOLDER [--output FILE]

Writes one self-contained HTML page with plots of what a run left in FOLDER: the metrics of the
jsonl tracker, and from profiles (profile.dir) the steps per second, the shares of waiting and
communication, the memory, and the rank that the others wait for. Also prints a short summary.

  --output FILE  write the page to FILE (default: FOLDER/report.html)

  coupler report runs/digits
)help";

namespace {}  // namespace

int run_report(int argc, char** argv) {
  std::string folder, output;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--help" || word == "-h") {
      std::fputs(kReportHelp, stdout);
      return 0;
    }
    if (word == "--output" && i + 1 < argc) {
      output = argv[++i];
    } else if (word.rfind("--output=", 0) == 0) {
      output = word.substr(std::strlen("--output="));
    } else if (folder.empty() && word[0] != '-') {
      folder = word;
    } else {
      throw Error(ErrorCode::kUsage, fmt::format("report: unknown argument '{}'", word),
                  {.subject = std::string(word), .hint = "see 'coupler report --help'"});
    }
  }
  if (folder.empty())
    throw Error(ErrorCode::kUsage, "report: FOLDER, the folder of a run, is missing",
                {.subject = "FOLDER", .hint = "see 'coupler report --help'"});
  if (output.empty()) output = folder + "/report.html";
  const RunRecord run = read_run(folder);
  replace_file(output, html_page(run));
  std::printf("%s%s\n", summary_text(run).c_str(), output.c_str());
  return 0;
}

}  // namespace coupler::cli

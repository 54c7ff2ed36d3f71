// coupler report: what a run left in a folder as one page with plots.
#include <coupler/error.h>
#include <fmt/format.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>

#include "cli/commands.h"
#include "cli/report/report_page.h"
#include "cli/report/run_record.h"
#include "io/durable_file.h"

namespace coupler::cli {

const char kReportHelp[] = R"help(usage: coupler report FOLDER [--output FILE]

Writes one HTML page with plots, which needs no network and nothing beside it, of what a run left in
FOLDER: the numbers of the tracker jsonl, and what profile.dir had recorded: steps a second, the share
of waiting and communication, memory, and the rank that the others wait for. Prints the same in short.

  --output FILE  where to (default FOLDER/report.html)

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
      throw Error(ErrorCode::kUsage, fmt::format("coupler report does not know '{}'", word),
                  {.subject = std::string(word), .hint = "'coupler report --help' explains it"});
    }
  }
  if (folder.empty())
    throw Error(ErrorCode::kUsage, "coupler report needs the folder of a run",
                {.subject = "FOLDER", .hint = "'coupler report --help' explains it"});
  if (output.empty()) output = folder + "/report.html";
  const RunRecord run = read_run(folder);
  replace_file(output, html_page(run));
  std::printf("%s%s\n", summary_text(run).c_str(), output.c_str());
  return 0;
}

}  // namespace coupler::cli

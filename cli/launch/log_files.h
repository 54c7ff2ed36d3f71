// The files of --log-dir. Plain functions; no thread rule.
#pragma once

#include <string>

namespace coupler::cli {

// Makes the folder, with those above it, and checks that files can be made there. Throws Error(kIo)
// naming it.
void make_log_folder(const std::string& folder);

// "FOLDER/rank-3.log", "" without a folder.
std::string log_path(const std::string& folder, int rank);

}  // namespace coupler::cli

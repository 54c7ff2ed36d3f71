// The files of --log-dir. Plain functions; no threading rule.
#pragma once

#include <string>

namespace coupler::cli {

// Creates the folder and its parents, and checks that files can be created in it. Throws Error(kIo)
// naming it.
void make_log_folder(const std::string& folder);

// "FOLDER/rank-3.log"; "" without a folder.
std::string log_path(const std::string& folder, int rank);

}  // namespace coupler::cli

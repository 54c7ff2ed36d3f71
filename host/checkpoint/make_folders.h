// Making and removing folders so that it lasts. Plain functions, any thread.
#pragma once

#include <string>

namespace coupler::checkpoint {

// Makes a folder, and those above that are missing, readable as the user's umask says, and returns
// the path without links once all the names are on the disk. What is there already is left as it
// is. Throws Error(kIo), naming a file that is in the way.
std::string make_folders(const std::string& path);

// Removes a folder of checkpoint files with all that is in it; links are not followed. Nothing is
// wrong where it is not there. Throws Error(kIo) naming what cannot be removed.
void remove_folder(const std::string& path);

}  // namespace coupler::checkpoint

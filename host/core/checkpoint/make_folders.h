// Creates and removes folders durably. Plain functions, any thread.
#pragma once

#include <string>

namespace coupler::checkpoint {

// Creates a folder and its missing parents with the user's umask, and returns the path without
// links once all names are on disk. Existing folders are left as they are. Throws Error(kIo),
// naming a file that is in the way.
std::string make_folders(const std::string& path);

// Removes a folder of checkpoint files with all its contents; links are not followed. It is not an
// error if the folder does not exist. Throws Error(kIo) naming what cannot be removed.
void remove_folder(const std::string& path);

}  // namespace coupler::checkpoint

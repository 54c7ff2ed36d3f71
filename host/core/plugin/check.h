// Checks a plugin's file before any of its code runs. [any-thread]
//
// Whoever can replace the file can run code as this user. So the file must be a regular file; it
// and its folder must belong to root or to this user and be writable by no one else (the owner's
// own private group does not count as someone else). No folder above may be writable by everyone
// unless it is sticky, as /tmp is. The plugin's own folder must not even be sticky: a plugin may
// open a second library next to it. Then only root, this user, or the owner of a folder above can
// exchange the file between check and dlopen. That is why the real path is opened afterwards, and
// not /proc/self/fd/N, under which dladdr would report a wrong location to the plugin.
#pragma once

#include <string>

namespace coupler::plugin {

// Returns the real path (symbolic links resolved) of a plugin that passed. sha256: the expected
// hash of the file, 64 hex digits, or "". Throws Error(kPlugin); its subject is the path.
std::string check_plugin_file(const std::string& path, const std::string& sha256);

}  // namespace coupler::plugin
